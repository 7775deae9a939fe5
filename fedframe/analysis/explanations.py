"""How to read each measure: one sentence for someone who sees it for the first time."""

from __future__ import annotations

READINGS: dict[str, str] = {
    "generic": "Share of the global test set that the shared model gets right; 1 is all of it.",
    "client": "The shared model on each client's own test data, mean over clients; far below `personal` means that one "
    "model does not suit everybody.",
    "personal": "Each client's own model on its own test data, mean over clients; a client that knows two classes only "
    "has an easy task, so compare it with other methods, not with `generic`.",
    "new": "Clients that were not in the training: what the finished run is worth to someone who comes later.",
    "spread": "How unequally clients are served: the standard deviation over clients, and the mean accuracy of the "
    "worst tenth of them, which a good mean can hide.",
    "per_class": "Share of each class's test samples that is right; low ones are classes that few clients hold.",
    "groups": "Mean accuracy of frequent (many), middling (medium) and rare (few) classes; a gap between them is what "
    "long-tailed data do.",
    "confusion": "Rows are what samples are, columns what they are taken for; off the diagonal are the mistakes.",
    "ece": "How far the model's confidence is from how often it is right; 0.05 means off by five points on average.",
    "partition": "Training samples of each class at each client: the disagreement that the method has to live with.",
    "gram": "Cosines between class vectors; the ideal has all of them equal at -1/(C-1), so that no two classes are "
    "nearer to each other than others.",
    "nc1": "Spread of features inside classes relative to that between them; 0 means every class is one point.",
    "nc2_norms": "How unequal the class means are in length; 0 means no class is favoured by its size.",
    "nc2_angles": "How far the angles between class means are from the largest possible ones; 0 is a simplex ETF.",
    "nc2_classifier_norms": "How unequal the class vectors of the classifier are in length; 0 means all alike.",
    "nc2_classifier_angles": "How far the classifier's angles are from the largest possible ones; 0 is a simplex ETF.",
    "nc3": "How far the classifier is from pointing where the class means are; 0 means both are the same up to scale.",
    "nc4": "Share of samples that the nearest class mean and the classifier decide differently; 0: they agree.",
    "prototypes": "How alike clients' mean features of one class are, 1 being the same: low means they do not mean the "
    "same by a class (shared: under the shared model; own: each under its own).",
    "prototype_cosine": "How alike clients' mean features of one class are (1: the same), under their models as "
    "local training has left them in a round.",
    "degeneration": "The features of a class sorted by size: if small ones vary much, they are noise; the pruning "
    "curve shows how many of the largest ones are enough.",
    "embedding": "Training samples as the shared model sees them; points should lie together by class, not by client.",
    "classifier_drift": "How alike two clients' classifiers are: cosine (1: same direction) and difference in length "
    "(0: same) of a class's vectors, mean over classes (SphereFed, Eq. 2 and 3).",
    "classifier_cosine": "Cosine of two clients' class vectors after local training in a round, over pairs of "
    "clients; falls as data disagree.",
    "classifier_norm_difference": "Difference in length of two clients' class vectors after local training in a "
    "round, over pairs of clients; rises as data disagree.",
    "drift_cosine": "Cosine between a client's update and the step that the shared model takes, mean over clients; 1 "
    "means all pull the same way, below 0 against it.",
    "drift_norm": "Length of a client's update, mean over clients; far above `step_norm` means that they cancel out.",
    "step_norm": "Length of the step that the shared model takes in a round.",
    "cka": "How alike clients' nets see the same samples, layer by layer; 1 is the same up to rotation, and late "
    "layers usually fall first.",
    "flops_per_sample": "Products and sums of one prediction; hardware does billions of them a second.",
    "by_part": "Bytes that all clients together sent (up) and received (down) in rounds, by what they were for.",
    "stages": "Bytes that the stages after the last round add to those of the rounds, and their seconds.",
    "cpu_seconds": "Processor seconds of all processes together.",
    "peak_memory_mb": "Memory of all processes at its highest, looked at every two seconds.",
}

# Figures of a round in metrics.jsonl, by the measure that brings them; cka also has one per layer, `cka/LAYER`.
COLLAPSE = ("nc1", "nc2_norms", "nc2_angles", "nc2_classifier_norms", "nc2_classifier_angles", "nc3", "nc4")
DRIFT = (
    "prototype_cosine",
    "drift_cosine",
    "drift_norm",
    "step_norm",
    "classifier_cosine",
    "classifier_norm_difference",
    "cka",
)

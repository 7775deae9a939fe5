"""Take a client out of a finished model, exactly: python examples/join_and_forget.py

`analytic` is fitted from sums over clients. What a client has contributed is taken out of them, and the model is
that of a run in which the client never was.
"""

from sklearn.datasets import load_digits

import fedframe

images = load_digits().images[:200]

result = fedframe.run("analytic", data="digits", clients=10, progress=False)
before = result.model.probabilities(images)

fedframe.forget(result.folder, "7", progress=False)
after = fedframe.Predictor.load(result.folder).probabilities(images)

print(f"probabilities change by {abs(before - after).max():.3f} at most: client 7 is out of the model")

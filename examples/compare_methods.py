"""Compare two methods on the same clients, over two seeds: python examples/compare_methods.py"""

import sys

import fedframe

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10

comparison = fedframe.compare(
    ["fedavg", "fedprox"],
    seeds=2,  # five, when it matters
    data="digits",
    partition="dirichlet:0.1",
    clients=10,
    rounds=rounds,
    out="runs/compare-example",
)
print(comparison.table())

difference = comparison.differences["fedprox"]["generic.final"]
print(f"FedProx is {100 * difference.mean:+.1f} points from FedAvg in the mean; p = {difference.p:.2f} (two seeds!)")

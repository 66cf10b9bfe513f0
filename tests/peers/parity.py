"""Schemes against the code of others, measured: how far relpos in float32 and the other code in
float32 are from the other code in float64, forward and for every gradient. `make parity` runs it in
an environment that has the other packages; docs/parity.md says what is compared.

The exit status is 1 if a row exceeds the bound or raises, and with RELPOS_PARITY=all also if a
package is absent or has another version than the one that is pinned.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata

import torch

from tests import ROOT
from tests.peers import (
    published,
    published_coordinates,
    published_packages,
    published_rotations,
    published_tables,
)
from tests.peers.published import by_relpos, drawing, numbers, pulled
from tests.support.peer_modes import Float64

OLD_TRANSFORMERS = ROOT / ".venv-parity" / "transformers4"
BOUND, DRAWS = 2.0, 128
MODULES = (
    published,
    published_rotations,
    published_tables,
    published_coordinates,
    published_packages,
)
EVERY = {name: peer for module in MODULES for name, peer in module.PEERS.items()}
PEERS = {name: peer for name, peer in EVERY.items() if peer.package}
HEAD = (
    "| peer | scheme | class or function | package | forward: relpos | origin | ratio "
    "| gradients: relpos | origin | ratio | each |\n" + "|---" * 11 + "|"
)


@dataclass
class Row:
    """Largest errors over all draws, ours and theirs: of the result, and of all gradients. `each`
    is the largest ratio of one tensor's errors, both medians of the draws' largest; it is shown,
    and has no bound."""

    name: str
    version: str
    forward: tuple[float, float] = (0.0, 0.0)
    gradients: tuple[float, float] = (0.0, 0.0)
    each: float = 0.0
    problem: str = ""

    def ratios(self):
        return [ours / theirs for ours, theirs in (self.forward, self.gradients)]

    def failure(self, everything):
        """Why the row fails, or nothing; `everything` asks for all packages in their versions."""
        peer = PEERS[self.name]
        if self.problem == "absent":
            return f"{peer.package} is not installed" if everything else ""
        if self.problem:
            return self.problem
        if everything and self.version != pinned(peer):
            return f"{peer.package} is {self.version}, not {pinned(peer)}"
        if not all(ratio <= BOUND for ratio in self.ratios()):
            return f"errors of more than {BOUND:g} times those of the origin"
        return ""

    def text(self):
        peer = PEERS[self.name]
        start = f"| {self.name} | {peer.scheme} | `{peer.name}` | {peer.package} {self.version} |"
        if self.problem:
            return f"{start} {self.problem} |"
        pairs = zip((self.forward, self.gradients), self.ratios(), strict=True)
        cells = [f"{ours:.1e} | {theirs:.1e} | {ratio:.2f}" for (ours, theirs), ratio in pairs]
        return f"{start} {' | '.join(cells)} | {self.each:.2f} |"


def pinned(peer):
    """The version that the requirements name."""
    names = (
        "tests/peers/parity_requirements_old.txt"
        if peer.old
        else "tests/peers/parity_requirements.txt"
    )
    for name in (names, "requirements.txt"):
        for line in (ROOT / name).read_text().splitlines():
            if line.startswith(f"{peer.package}=="):
                return line.partition("==")[2]
    raise LookupError(f"{peer.package} has no version in tests/peers/parity_requirements.txt")


def held(peer, out, leaves):
    """The result and the gradients of the leaves, for fixed gradients of the result."""
    seed = numbers(*peer.out.shape, seed=77).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, seed)]


def ours(peer):
    """Results of relpos, from the queries, keys and values of the peer, back to its leaves."""
    result, *gradients = held(peer, *by_relpos(peer, peer.out.dtype))
    return [result, *pulled(peer, gradients)]


def errors(origin, seed):
    """[tensors, 2], ours and theirs: the result's and each gradient's largest error in one draw,
    relative to the tensor's largest number."""
    with drawing(torch.float32, seed):
        peer = origin()
        assert peer.out.dtype == torch.float32, "the other code computed in another dtype"
        found = zip(ours(peer), held(peer, peer.out, peer.leaves), strict=True)
    with Float64(), drawing(torch.float64, seed):
        peer = origin()
        exact = held(peer, peer.out, peer.leaves)
    sizes = torch.stack([x.abs().max() for x in exact])
    sizes[sizes < 1e-9] = sizes.max()  # a gradient that is 0, as that of a number all scores share
    return torch.stack(
        [
            torch.stack([(x - e).abs().max() / size for x in both])
            for e, size, both in zip(exact, sizes, found, strict=True)
        ]
    )


def measured(name):
    """The row of a peer."""
    peer = PEERS[name]
    try:
        version = metadata.version(peer.package)
    except metadata.PackageNotFoundError:
        return Row(name, "", problem="absent")
    if peer.old and not version.startswith("4."):
        return Row(name, "", problem="absent")
    try:
        found = torch.stack([errors(peer, seed) for seed in range(DRAWS)])
    except Exception as error:  # of the other package, too: the row shows it
        return Row(name, version, problem=f"{type(error).__name__}: {error}")
    typical = found.median(0).values
    each = float((typical[:, 0] / typical[:, 1]).max())
    gradients = found[:, 1:].amax((0, 1))
    return Row(name, version, found[:, 0].amax(0).tolist(), gradients.tolist(), each)


def rows(names):
    """The rows of peers; those of the old transformers come from a process that finds it first."""
    old = [name for name in names if PEERS[name].old]
    found = {row.name: row for row in (rows_of_old(old) if old else [])}
    for name in names:
        yield found.get(name) or measured(name)


def rows_of_old(names):
    places = [str(OLD_TRANSFORMERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-m", f"{__package__}.parity", "--json", *names]
    run = subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return [Row(**json.loads(line)) for line in run.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description="schemes against their origins, measured")
    parser.add_argument("--only", default="", metavar="TEXT", help="peers whose row has this text")
    parser.add_argument("--json", nargs="+", metavar="PEER", help="rows of these, in this process")
    arguments = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(1)
    if arguments.json:
        for name in arguments.json:
            print(json.dumps(asdict(measured(name))))
        return 0
    chosen = [n for n in PEERS if arguments.only in f"{n} {PEERS[n].scheme} {PEERS[n].package}"]
    everything, failures = os.environ.get("RELPOS_PARITY") == "all", []
    print(HEAD)
    for row in rows(sorted(chosen, key=lambda name: PEERS[name].scheme)):
        print(row.text(), flush=True)
        if why := row.failure(everything):
            failures.append(f"{row.name}: {why}")
    if failures:
        print(*failures, sep="\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""A masked key never leaks; a visible NaN reaches exactly the rows that see it."""

import pytest
import relpos
import torch

from tests import FULL
from tests.support.oracle import allowed_pairs, positions
from tests.support.sample import HEADS, NAMES, configurations, position, tensors, trained
from tests.support.steps import step

LENGTH = 70  # more than one tile of 64 keys, and a ragged one
pytestmark = pytest.mark.usefixtures("one_thread")

WILD = [torch.nan, torch.inf, -torch.inf]


def boundaries():
    """{kind: keyword arguments of a masked call of LENGTH by LENGTH (decode: 3 by 2 LENGTH)}."""

    def draw():
        return torch.Generator().manual_seed(5)

    low = torch.randint(0, LENGTH, (LENGTH,), generator=draw())
    seen = torch.rand(1, HEADS, LENGTH, LENGTH, generator=draw()) < 0.3
    hiding = {
        "causal": {"is_causal": True},
        "window": {"window": (5, 2)},
        "causal with memory": {"q_offset": 12, "is_causal": True, "window": (30, -1)},
        "decode": {"q_offset": 2 * LENGTH - 3, "is_causal": True, "window": (LENGTH, -1)},
        "padding": {"key_padding_mask": torch.rand(1, LENGTH, generator=draw()) < 0.4},
        "range": {"key_range": (low, (low + 9).clamp(max=LENGTH))},
        "bool mask": {"attn_mask": seen},
        "float mask": {"attn_mask": torch.where(seen, 0.5, -torch.inf)},
    }
    return {kind: {"q_offset": 0} | call for kind, call in hiding.items()}


KINDS = list(boundaries())
OTHER_DTYPES = [torch.float64, torch.bfloat16, torch.float16]
# Each scheme meets every third kind, its neighbours the others; all with RELPOS_FULL.
TRIALS = [
    (kind, name, torch.float32)
    for m, kind in enumerate(KINDS)
    for n, name in enumerate(NAMES)
    if FULL or name == "sum" or (n + m) % 3 == 0
] + [(kind, "sum", dtype) for kind in KINDS for dtype in OTHER_DTYPES]


class Trial:
    """One masked call, its clean results, and what each pair may see."""

    def __init__(self, kind, name, dtype):
        self.module, _ = position(name, dtype=dtype)
        self.queries, self.keys = (3, 2 * LENGTH) if kind == "decode" else (LENGTH, LENGTH)
        sizes = {"queries": self.queries, "keys": self.keys}
        *self.inputs, self.dout = tensors(**sizes, dtype=dtype)
        self.call = boundaries()[kind]
        if kind == "float mask":
            self.call["attn_mask"] = self.call["attn_mask"].to(dtype)
        masks = dict(self.call)
        pos_q, pos_k = positions(1, self.queries, self.keys, q_offset=masks.pop("q_offset"))
        self.seen = allowed_pairs(pos_q, pos_k, heads=HEADS, **masks)[0]
        self.clean = self.run(*self.inputs, self.dout)

    def run(self, q, k, v, dout):
        """out, lse, dq, dk, dv and the gradients of tables, detached."""
        call = dict(self.call)
        if "key_padding_mask" in call:
            call["key_padding_mask"] = call["key_padding_mask"].expand(len(q), -1)
        return step(q, k, v, dout, self.module, **call)

    def copies(self, count):
        """query, key, value and dout, the same in each of `count` batch rows."""
        return [x.repeat(count, 1, 1, 1) for x in (*self.inputs, self.dout)]

    def check(self, poisoned, rows, keys):
        """`rows` [N, H, Lq] and `keys` [N, H, Lk] of N batch rows may change; all else equals the
        clean results."""
        got = self.run(*poisoned)
        for name, now, was, free in zip(
            ["out", "lse", "dq", "dk", "dv"],
            got,
            self.clean,
            [rows[0], rows[0], rows[1], keys, keys],
            strict=False,
        ):
            close(now[~free], was.expand_as(now)[~free], name)
        quiet = ~(rows[1].any(-1) | keys.any(-1)).any(-1)
        if quiet.any():
            for now, was in zip(
                self.run(*(x[quiet] for x in poisoned))[5:], self.clean[5:], strict=True
            ):
                close(now / quiet.sum(), was, "a table's gradient")
        return got


def close(now, was, name):
    half = now.dtype in (torch.bfloat16, torch.float16)
    bar = {"rtol": 2e-2, "atol": 2e-2} if half else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(now, was, **bar, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize(("kind", "name", "dtype"), TRIALS)
def test_poisoned_keys_and_values(kind, name, dtype):
    """Batch row n holds what is wild at key n."""
    trial = Trial(kind, name, dtype)
    every = list(range(trial.keys))
    rows = trial.seen.permute(2, 0, 1)  # [key, H, Lq]
    keys = (trial.seen & rows[..., None]).any(dim=2)
    keys[every, :, every] |= rows.any(-1)
    unseen = ~rows.any(-1)
    for side in (1, 2):
        poisoned = trial.copies(trial.keys)
        for column in every:
            poisoned[side][column, :, column, (column % 5) :] = WILD[(column + side) % 3]
        got = trial.check(poisoned, (rows, rows), keys)
        nan = [column for column in every if WILD[(column + side) % 3] is torch.nan]
        spoiled = got[0][nan].isnan()
        assert torch.equal(spoiled.all(-1) if side == 1 else spoiled.any(-1), rows[nan])
        for gradient in got[3:5]:
            assert (gradient[every, :, every][unseen] == 0).all()


@pytest.mark.parametrize(("kind", "name", "dtype"), TRIALS)
def test_poisoned_queries_and_output_gradients(kind, name, dtype):
    """Batch row n holds what is wild at query n."""
    trial = Trial(kind, name, dtype)
    every = list(range(trial.queries))
    alive = trial.seen.any(-1).T  # [query, H]
    rows = torch.zeros(trial.queries, HEADS, trial.queries, dtype=torch.bool)
    rows[every, :, every] = alive
    keys = trial.seen.transpose(0, 1) & alive[..., None]
    for side in (0, 3):
        poisoned = trial.copies(trial.queries)
        for row in every:
            first, wild = (row % 8, torch.nan) if side == 0 else (0, WILD[row % 3])
            poisoned[side][row, :, row, first:] = wild
        got = trial.check(poisoned, (rows if side == 0 else torch.zeros_like(rows), rows), keys)
        if side == 0:
            assert torch.equal(got[0].isnan().all(-1), rows)


@pytest.mark.parametrize(("name", "number"), configurations())
def test_poisoned_table_rows(name, number):
    """A NaN in a table reaches exactly the rows with a visible pair that reads it."""
    module, part = trained(name, number)
    q, k, v, _ = tensors(queries=LENGTH, keys=LENGTH)
    causal = torch.ones(LENGTH, LENGTH).tril().bool()
    for parameter in module.parameters():
        flat = parameter.detach().view(-1)
        for at in torch.linspace(0, len(flat) - 1, 12).long():
            kept = flat[at].item()
            flat[at] = torch.nan
            terms = part.terms(torch.arange(LENGTH), torch.arange(LENGTH))
            spoiled = torch.zeros(HEADS, LENGTH, LENGTH, dtype=torch.bool)
            for kind, term in terms.items():
                wrong = term.isnan() if kind == "bias" else term.isnan().any(-1)
                spoiled |= wrong[:, None, None] if kind.endswith("added") else wrong
            try:
                out = relpos.attention(q, k, v, position=module, is_causal=True)
            except ValueError as error:  # a scheme may refuse such a number, by name
                if "nan" in str(error):
                    continue
                raise
            finally:
                flat[at] = kept
            assert torch.equal(out.isnan().any(-1)[0], (spoiled & causal).any(-1))

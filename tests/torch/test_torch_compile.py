"""torch.compile and torch.export: whole graphs, every backend, dynamic lengths."""

import pytest
import relpos
import torch

from tests.support.near import close
from tests.support.scheme_variants import HEAD_DIM, HEADS, VARIANTS, build, randomised, tensors
from tests.support.steps import same_bits

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated"),
]


def graphs():
    """One variant of each graph: a position's text is a constant there, its tables are inputs."""
    found = {}
    for name, scheme, options in VARIANTS:
        shapes = tuple(table.shape for table in build(scheme, options).parameters())
        found.setdefault((scheme.name, shapes), pytest.param(scheme, options, id=name))
    return list(found.values())


def with_gradients(loss, leaves):
    return [loss, *torch.autograd.grad(loss, leaves)]


@pytest.fixture
def table():
    return randomised(relpos.BiasRPE(HEADS, 4))


@pytest.mark.parametrize(("scheme", "options"), graphs())
def test_compile_without_graph_breaks(scheme, options):
    torch._dynamo.reset()
    position = randomised(build(scheme, options), torch.float32)
    inputs = [x.detach().float().requires_grad_() for x in tensors()]

    def run(q, k, v):
        out, lse = relpos.attention(q, k, v, position=position, is_causal=True, return_lse=True)
        return out.square().sum() + lse.sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    leaves = [*inputs, *position.parameters()]
    got, want = (with_gradients(attend(*inputs), leaves) for attend in (compiled, run))
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got, want)


def test_compile_with_a_dynamic_length_and_every_option(table):
    torch._dynamo.reset()
    table = table.float()
    rope = relpos.RoPE(HEAD_DIM, layout="half")

    def run(q, k, v, padding):
        return relpos.attention(
            q,
            k,
            v,
            position=[table, rope],
            key_padding_mask=padding,
            window=(3, 1),
            q_offset=k.shape[2] - q.shape[2],
            scale=0.3,
            return_weights=True,
        )

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (5, 6, 9):
        inputs = [x.float() for x in tensors(queries=3, keys=length)]
        padding = torch.zeros(2, length, dtype=torch.bool)
        padding[1, -1] = True
        same_bits(compiled(*inputs, padding), run(*inputs, padding))


def test_compile_the_rest(table):
    torch._dynamo.reset()
    rope = relpos.RoPE(HEAD_DIM, layout="interleaved")
    position = relpos.T5Bias(HEADS) + rope
    module = relpos.nn.MultiheadAttention(8, HEADS, position=position, batch_first=True).double()
    x = tensors(heads=1, dim=8)[0].detach()[:, 0]
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    floating = torch.zeros(2, 5, dtype=x.dtype).masked_fill(padding, -torch.inf)

    def run(x):
        rows = x.unflatten(2, (HEADS, HEAD_DIM)).transpose(1, 2)
        turned = rope.rotate(rows, offset=3)
        score = relpos.scores(turned, turned, position=table)
        return (
            module(x, x, x, key_padding_mask=padding, need_weights=True, average_attn_weights=True),
            module(x, x, x, key_padding_mask=floating, is_causal=True)[0],
            score + table.dense(5, 5),
            rope.dense(5, 5),
        )

    got = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(got, run(x))


def test_export_keeps_one_operator(table):
    class Attend(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.position = table

        def forward(self, q, k, v):
            return relpos.attention(q, k, v, position=self.position, is_causal=True)

    inputs = tuple(x.detach() for x in tensors())
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(Attend(), inputs, dynamic_shapes=[{2: length}] * 3)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert sum("relpos.attention" in target for target in targets) == 1
    longer = tuple(x.detach() for x in tensors(queries=9, keys=9))
    assert torch.equal(
        program.module()(*longer), relpos.attention(*longer, position=table, is_causal=True)
    )


class Block(torch.nn.Module):
    """Every call of the front that a model may hold, once."""

    def __init__(self):
        super().__init__()
        self.attend = relpos.nn.MultiheadAttention(
            HEADS * HEAD_DIM,
            HEADS,
            position=relpos.T5Bias(HEADS) + relpos.RoPE(4, layout="half"),
            batch_first=True,
        )
        self.table = relpos.Shaw(3, HEAD_DIM)

    def forward(self, x, starts):
        attended, _ = self.attend(x, x, x, is_causal=True)
        rows = attended.unflatten(2, (HEADS, HEAD_DIM)).transpose(1, 2)
        shims = relpos.sdpa(rows, rows, rows, is_causal=True)
        shims = shims + relpos.flash_attn_func(*[rows.transpose(1, 2)] * 3).transpose(1, 2)
        halves = [
            relpos.attention(rows, part, part, position=self.table, q_offset=0, return_lse=True)
            for part in (rows[:, :, :2], rows[:, :, 2:])
        ]
        joined, lse = relpos.merge(*zip(*halves, strict=True))
        packed = rows[0].transpose(0, 1)
        packed = relpos.attention_varlen(packed, packed, packed, starts, position=self.table)
        return shims.sum() + joined.square().sum() + lse.sum() + packed.square().sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_backends_of_compile(backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    block = Block().double()
    compiled = torch.compile(block, fullgraph=True, backend=backend, dynamic=True)
    for length in (6, 9):
        x = torch.randn(2, length, HEADS * HEAD_DIM).double().requires_grad_()
        starts = torch.tensor([0, 4, length])
        leaves = [x, *block.parameters()]
        close(*(with_gradients(run(x, starts), leaves) for run in (compiled, block)))


def test_compositions_are_part_of_the_graph():
    torch._dynamo.reset()
    rope = relpos.RoPE(HEAD_DIM, layout="half")

    def run(q, k, v):
        options = {"position": rope, "group_size": 2, "window_size": 4}
        polar = relpos.compose.polar(q, k, v, is_causal=True)
        turned = relpos.compose.rotate_values(q, k, k, position=rope, undo=True)
        extended = relpos.compose.self_extend(q, k, v, **options)
        return polar.sum() + turned.square().sum() + extended.square().sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (7, 10):
        leaves = tensors(queries=length, keys=length)
        close(*(with_gradients(attend(*leaves), leaves) for attend in (compiled, run)))

"""The first three notebooks: what they print, value for value, and what their bugs do.

docs/notebooks.md lists the cells. The other two: test_notebooks_attention.py; the same matrices
from the command line: test_cli.py.
"""

import math

import pytest
import relpos
import torch
from torch import nn

from tests.support import notebook_prints as prints
from tests.support.notebook_prints import is_printed, literal


def filled(position, text):
    """A position whose only parameter holds a printed table."""
    (table,) = position.parameters()
    with torch.no_grad():
        table.copy_(torch.tensor(literal(text)))
    return position


# The first notebook: Shaw's rows.

EMBEDDINGS = "embeddings_table[final_mat]"


def first():
    return filled(relpos.Shaw(2, 8, values=False, distance="query-key"), prints.FIRST_TABLE)


def test_first_order_and_rows():
    assert [name for name, _ in first().steps(3, 3)] == [
        "range_vec_q",
        "range_vec_k",
        "distance_mat",
        "distance_mat_clipped",
        "final_mat",
        EMBEDDINGS,
    ]
    assert is_printed(first().dense(3, 3), prints.FIRST_EMBEDDINGS)
    assert relpos.Shaw(4, 8).key_table.shape == (9, 8)  # the prose's example


def test_first_sign_reverses_the_table():
    """The prose's distance is j - i, key - query; the cells take query - key."""
    position = relpos.Shaw(2, 8, values=False)
    with torch.no_grad():
        position.key_table.copy_(first().key_table.flip(0))
    assert position.indices(3, 3).tolist() == [[2, 3, 4], [1, 2, 3], [0, 1, 2]]
    assert torch.equal(position.dense(3, 3), first().dense(3, 3))


def test_first_table_is_xavier_normal_not_uniform():
    bound = math.sqrt(6 / (5 + 8))
    assert first().key_table.abs().max() > bound
    for seed in range(20):
        torch.manual_seed(seed)
        assert relpos.Shaw(2, 8).key_table.abs().max() <= bound
        torch.manual_seed(seed)
        want = nn.init.xavier_normal_(torch.empty(5, 8))
        torch.manual_seed(seed)
        got = relpos.Shaw(2, 8, values=False, init="xavier_normal").key_table
        torch.testing.assert_close(got, nn.Parameter(want))


# The second notebook: T5's buckets step by step.


def second():
    return filled(relpos.T5Bias(4, 6, 20, bidirectional=False), prints.SECOND_WEIGHT)


def test_second_values_are_transposed():
    """transpose(0, 2) gives [H, key, query]: each printed value is of the pair turned round."""
    dense = second().dense(14, 14)
    assert torch.equal(dict(second().steps(14, 14))["relative_position_values"], dense)
    assert is_printed(dense.transpose(1, 2)[None], prints.SECOND_VALUES)
    assert not is_printed(dense[None], prints.SECOND_VALUES)
    indices = second().indices(10, 20, q_offset=0)
    notebook = second().relative_attention_bias.weight[indices].transpose(0, 2)
    right = second().dense(10, 20, q_offset=0)
    assert list(notebook.shape) == [4, 20, 10]
    assert list(right.shape) == [4, 10, 20]
    assert torch.equal(right, notebook.transpose(1, 2))


def large(n, buckets, max_distance):
    """The notebooks' logarithm: what stands after `max_exact +`."""
    exact = buckets // 2
    return torch.log(n.float() / exact) / math.log(max_distance / exact) * (buckets - exact)


def test_second_two_forms_of_val_if_large():
    """The first form truncates, then adds; the second, which overwrites it, adds, then truncates.
    They differ below max_exact alone, where is_small takes n itself."""
    n = torch.arange(14)
    early = 3 + large(n, 6, 20).long()
    late = (3 + large(n, 6, 20)).long()
    assert early[:3].tolist() == [3 - 2**63, 2, 3]
    assert late[:3].tolist() == [-(2**63), 1, 2]
    assert torch.equal(early[3:], late[3:])
    steps = dict(second().steps(14, 14))
    assert torch.equal(late, steps["val_if_large.long()"][13].flip(0))
    assert torch.equal(late.clamp(max=5), steps["min(val_if_large, num_buckets - 1)"][13].flip(0))


def notebook_classes(n, buckets, max_distance, clamp):
    exact = buckets // 2
    value = (exact + large(n, buckets, max_distance)).long()
    return torch.where(n < exact, n, value.clamp(max=clamp))


def test_second_step_by_step_leaves_out_the_clamp():
    """Without min() the distance max_distance asks for a row that the table does not have."""
    n = torch.arange(21)
    without = notebook_classes(n, 6, 20, 2**62)
    assert (without[:20].max(), without[20]) == (5, 6)
    ours = relpos.T5Bias(1, 6, 20, bidirectional=False).indices(21, 1, q_offset=0)[:, 0]
    assert torch.equal(ours, without.clamp(max=5))


def test_second_class():
    """Its forward, with the two undefined names read as sequence_pos and context_pos."""
    position = relpos.T5Bias(8, bidirectional=False, bias_scale=0.5)  # the defaults 32 and 128
    n = (torch.arange(40)[:, None] - torch.arange(300)).clamp(min=0)
    values = position.relative_attention_bias.weight[notebook_classes(n, 32, 128, 31)] * 0.5
    notebook = values.transpose(0, 2).unsqueeze(0)
    assert list(notebook.shape) == [1, 8, 300, 40]
    right = position.dense(40, 300, q_offset=0)
    torch.testing.assert_close(right[None], notebook.transpose(2, 3))


SIGNED = [-2, -1, 0, 1, 2, 10, 50]


@pytest.mark.parametrize(
    ("options", "distances", "buckets"),
    [
        # `[1,2,3,4,5,5,6,...]`: right for 10 buckets, while the notebook itself has 6.
        ((10, 20, False), range(-1, -16, -1), [1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 7, 8, 8, 8, 8]),
        # `[2, 1, 0, 1, 2, 5, 8]` is wrong: the future shares bucket 0, or has its own half.
        ((6, 20, False), SIGNED, [2, 1, 0, 0, 0, 0, 0]),
        ((32, 128, False), SIGNED, [2, 1, 0, 0, 0, 0, 0]),
        ((32, 128, True), SIGNED, [2, 1, 0, 17, 18, 24, 29]),
        # `3 -> 3, 4 -> 4, 5 -> 4` takes 8 buckets.
        ((6, 20, False), [-3, -4, -5], [3, 3, 3]),
        ((8, 20, False), [-3, -4, -5], [3, 4, 4]),
        ((32, 128, False), [-112, -113, -128], [30, 31, 31]),  # the last one starts early
        # The third notebook's row.
        ((8, 17, False), range(-15, 1), [7, 7, 7, 7, 6, 6, 6, 5, 5, 5, 4, 4, 3, 2, 1, 0]),
    ],
)
def test_prose(options, distances, buckets):
    """Buckets of distances key - query that the text names."""
    position = relpos.T5Bias(1, *options)
    past = -min(distances)
    row = position.indices(1, past + max(0, *distances) + 1, q_offset=past)[0]
    assert row[[past + d for d in distances]].tolist() == buckets


# The third notebook: T5's buckets as a class, keys beyond the queries.


def third():
    return filled(relpos.T5Bias(4, 6, 20, bidirectional=False), prints.THIRD_WEIGHT)


@pytest.mark.parametrize(
    ("position", "grid", "name", "text"),
    [
        (first, (3, 3), "range_vec_q", prints.FIRST_RANGE_VEC),
        (first, (3, 3), "range_vec_k", prints.FIRST_RANGE_VEC),
        (first, (3, 3), "distance_mat", prints.FIRST_DISTANCE_MAT),
        (first, (3, 3), "distance_mat_clipped", prints.FIRST_DISTANCE_MAT),
        (first, (3, 3), "final_mat", prints.FIRST_FINAL_MAT),
        (first, (3, 3), EMBEDDINGS, prints.FIRST_EMBEDDINGS),
        (second, (14, 14), "q_pos", prints.SECOND_POSITIONS),
        (second, (14, 14), "k_pos", prints.SECOND_POSITIONS),
        (second, (14, 14), "rel_pos", prints.SECOND_REL_POS),
        (second, (14, 14), "n", prints.SECOND_N),
        (second, (14, 14), "max(n, 0)", prints.SECOND_N_FROM_0),
        (second, (14, 14), "is_small", prints.SECOND_IS_SMALL),
        (second, (14, 14), "val_if_large", prints.SECOND_VAL_IF_LARGE),
        (second, (14, 14), "val_if_large.long()", prints.SECOND_VAL_IF_LARGE_LONG),
        (second, (14, 14), "position_bucket_indices", prints.SECOND_INDICES),
        (third, (4, 4), "rel_pos", prints.THIRD_IDEA),
        (third, (4, 4), "max(n, 0)", prints.THIRD_IDEA_POSITIVE),
        (third, (10, 15), "rel_pos", prints.THIRD_REL_POS_10_15),
        (third, (10, 10), "max(n, 0)", prints.THIRD_N_10_10),
        (third, (10, 15), "max(n, 0)", prints.THIRD_N_10_15),
        (third, (15, 15), "position_bucket_indices", prints.THIRD_INDICES),
    ],
)
def test_steps(position, grid, name, text):
    assert is_printed(dict(position().steps(*grid, q_offset=0))[name], text)


def test_third_last_rows_and_head_0():
    wide, square = (dict(third().steps(n, n)) for n in (15, 10))
    assert is_printed(square["is_small"][-1], prints.THIRD_IS_EXACT_LAST)
    assert is_printed(wide["val_if_large"][-1], prints.THIRD_VAL_IF_LARGE_LAST)
    assert is_printed(wide["val_if_large.long()"][-1], prints.THIRD_VAL_IF_LARGE_LONG_LAST)
    assert is_printed(-dict(third().steps(4, 4))["max(n, 0)"], prints.THIRD_IDEA_CAUSAL)
    assert is_printed(third().dense(10, 20, q_offset=0)[0], prints.THIRD_HEAD_0)


def test_third_keys_of_memory_come_first():
    """10 queries against 5 keys of memory and their own 10 stand at positions 5 to 14. The notebook
    starts both at 0; unsaid, relpos asks."""
    square = third().dense(15, 15)
    assert torch.equal(third().dense(10, 15, q_offset=5), square[:, 5:])
    assert torch.equal(third().dense(10, 15, q_offset=0), square[:, :10])
    assert not torch.equal(square[:, 5:], square[:, :10])
    with pytest.raises(ValueError, match=r"q_offset = Lk - Lq.*q_offset = 0"):
        third().dense(10, 15)


def test_third_class_clamps_with_the_global():
    """`num_buckets - 1` in forward is the global 6 - 1, whatever the class was made with."""
    n = torch.arange(200)
    notebook = notebook_classes(n, 32, 128, 6 - 1)
    ours = relpos.T5Bias(1, 32, 128, bidirectional=False).indices(200, 1, q_offset=0)[:, 0]
    assert torch.equal(ours, notebook_classes(n, 32, 128, 31))
    assert torch.equal(ours[:16], notebook[:16])
    assert (notebook[16:] == 5).all()
    assert (ours[16:] >= 16).all()
    assert torch.equal(notebook_classes(n, 6, 20, 5), third().indices(200, 1, q_offset=0)[:, 0])

"""What the five notebooks print, copied; "..." where a print is cut; and is_printed.

FIRST: Shaw keys. SECOND: T5 buckets, step by step. THIRD: T5 buckets, as a class. FOURTH: Shaw and
Music Transformer scores. LAST: bias, rotation, ALiBi. Names follow the notebooks' own variables. A
matrix that is printed with one number for each distance has these numbers here, and is whole where
the notebook cuts it.
"""

import ast
import math
import re

import numpy as np
import torch


def literal(text):
    return ast.literal_eval(text.strip().replace("-inf", "-1e999"))


def written(tensor):
    """The numbers as torch prints them: four decimals, no negative zero."""
    if tensor.dtype in (torch.bool, torch.int64):
        return [str(x) for x in tensor.flatten().tolist()]
    return ["-inf" if x == -math.inf else f"{x + 0.0:.4f}" for x in tensor.flatten().tolist()]


def is_printed(tensor, text):
    """Whether a tensor is what the notebook printed, up to where the print is cut."""
    want = re.findall(r"-?\d+(?:\.\d+)?|-inf|True|False", text)
    got = written(tensor)
    if "..." in text:
        return len(want) < len(got) and got[: len(want)] == want
    shape, level = [], literal(text)
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0]
    return list(tensor.shape) == shape and got == want


def by_distance(queries, keys, future, past):
    """The print of a matrix with the words of `past` at the distances query - key = 0, 1, ..., and
    with those of `future` at -1, -2, ...: what is beyond them is as the last one."""

    def word(distance):
        words, n = (past, distance) if distance >= 0 else (future, -distance - 1)
        return words[min(n, len(words) - 1)]

    words = [[word(query - key) for key in range(keys)] for query in range(queries)]
    width = max(len(word) for row in words for word in row)
    plain = {"formatter": {"all": f"{{:>{width}}}".format}}
    made = np.array2string(
        np.array(words), separator=", ", threshold=queries * keys, max_line_width=1000, **plain
    )
    return f"\n{made}\n"


def counted(first, last):
    """The words of the integers from the first to the last."""
    step = 1 if first <= last else -1
    return [str(n) for n in range(first, last + step, step)]


FIRST_TABLE = """
[[ 0.1740, -0.1894,  0.1764,  0.4095, -0.6246,  0.4744, -0.2800,  0.2685],
 [-0.1422, -0.5910,  0.1839, -0.2461,  0.1772, -0.2254, -0.6317, -0.3293],
 [ 0.2137,  0.5104,  0.2616, -0.5953,  0.2767, -0.1704,  0.1310, -0.2576],
 [-0.7897, -1.3042, -0.2933,  0.1419,  0.5016, -0.4019,  0.9015,  0.0623],
 [-0.3086, -0.3942,  0.3056,  0.0655, -0.4996, -0.2155, -0.0900,  0.7124]]
"""

FIRST_RANGE_VEC = "[0, 1, 2]"

FIRST_DISTANCE_MAT = """
[[ 0, -1, -2],
 [ 1,  0, -1],
 [ 2,  1,  0]]
"""

FIRST_FINAL_MAT = """
[[2, 1, 0],
 [3, 2, 1],
 [4, 3, 2]]
"""

_ROWS = re.findall(r"\[[^\[\]]+\]", FIRST_TABLE)
FIRST_EMBEDDINGS = str([[_ROWS[n] for n in row] for row in literal(FIRST_FINAL_MAT)])
FIRST_EMBEDDINGS = FIRST_EMBEDDINGS.replace("'", "")

SECOND_POSITIONS = "[ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13]"

SECOND_REL_POS = by_distance(14, 14, counted(1, 13), counted(0, -13))

SECOND_N = by_distance(14, 14, counted(-1, -13), counted(0, 13))

SECOND_N_FROM_0 = by_distance(14, 14, ["0"], counted(0, 13))

SECOND_IS_SMALL = by_distance(14, 14, ["True"], ["True"] * 3 + ["False"])

THIRD_VAL_IF_LARGE_LAST = """
[5.4360, 5.3188, 5.1922, 5.0546, 4.9039, 4.7373, 4.5510,
 4.3399, 4.0961, 3.8078, 3.4549, 3.0000, 2.3588, 1.2627,   -inf]
"""

SECOND_VAL_IF_LARGE = by_distance(
    14, 14, ["-inf"], re.findall(r"[-.\w]+", THIRD_VAL_IF_LARGE_LAST)[::-1]
)

THIRD_VAL_IF_LARGE_LONG_LAST = "[5, 5, 5, 5, 4, 4, 4, 4, 4, 3, 3, 3, 2, 1, -9223372036854775808]"

_LONG = re.findall(r"[-\w]+", THIRD_VAL_IF_LARGE_LONG_LAST)[::-1]
SECOND_VAL_IF_LARGE_LONG = by_distance(14, 14, _LONG[:1], _LONG)

_BUCKETS = list("012333444445555")
SECOND_INDICES = by_distance(14, 14, ["0"], _BUCKETS)

SECOND_WEIGHT = """
[[-0.3185,  0.7457, -0.3274, -0.2323],
 [-0.7818, -0.3635, -1.0704,  0.7617],
 [-0.0420,  0.5257,  0.8047,  0.7205],
 [-1.0042, -0.6981, -1.2029,  1.3093],
 [-0.5956, -0.1140,  0.5519,  0.1065],
 [ 0.9892, -0.0077,  0.5691, -0.5393]]
"""

# Its first head, transposed.
_FIRST_HEAD = [re.findall(r"[-.\w]+", SECOND_WEIGHT)[4 * int(n)] for n in _BUCKETS]
SECOND_VALUES = f"{by_distance(14, 14, _FIRST_HEAD[1:], _FIRST_HEAD[:1])} ..."

THIRD_IDEA = by_distance(4, 4, counted(1, 3), counted(0, -3))

THIRD_IDEA_CAUSAL = by_distance(4, 4, ["0"], counted(0, -3))

THIRD_IDEA_POSITIVE = by_distance(4, 4, ["0"], counted(0, 3))

THIRD_REL_POS_10_15 = by_distance(10, 15, counted(1, 14), counted(0, -9))

THIRD_N_10_10 = by_distance(10, 10, ["0"], counted(0, 9))

THIRD_N_10_15 = by_distance(10, 15, ["0"], counted(0, 9))

THIRD_IS_EXACT_LAST = "[False, False, False, False, False, False, False,  True,  True,  True]"

THIRD_INDICES = by_distance(15, 15, ["0"], _BUCKETS)

# The same for 10 queries and 15 keys.
THIRD_INDICES_10_15 = by_distance(10, 15, ["0"], _BUCKETS)

THIRD_WEIGHT = """
[[-0.6612, -1.0359,  0.1423, -0.1087],
 [ 0.3478,  0.1189,  0.9446, -0.2021],
 [ 0.4463, -0.3085,  0.4393, -0.6813],
 [-0.1137, -0.1136, -1.1700, -0.3337],
 [-0.6651, -1.0278, -0.1142,  0.3004],
 [-1.2078,  0.9238, -0.5395,  1.7939]]
"""

_HEAD_0 = [re.findall(r"[-.\w]+", THIRD_WEIGHT)[4 * int(n)] for n in _BUCKETS]
THIRD_HEAD_0 = by_distance(10, 20, _HEAD_0[:1], _HEAD_0)

FOURTH_RELATIVE = by_distance(12, 12, counted(-1, -11), counted(0, 11))

FOURTH_CLIPPED = by_distance(12, 12, counted(-1, -7), counted(0, 7))

# Of the row of the table for each pair, which is the one before + 7.
FOURTH_INDICES = by_distance(12, 12, counted(6, 0), counted(7, 14))

LAST_BIASES_0 = """
[[ 0.0000, -0.5000, -1.0000, -1.5000],
 [-0.5000,  0.0000, -0.5000, -1.0000],
 [-1.0000, -0.5000,  0.0000, -0.5000],
 [-1.5000, -1.0000, -0.5000,  0.0000]]
"""

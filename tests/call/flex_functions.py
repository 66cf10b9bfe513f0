"""FlexAttention's score_mods and mask_mods, each beside what it says of all pairs at once, as the
papers write it."""

import torch

DOUBLE = torch.float64
B, H, D = 2, 4, 8


class Scene:
    """Queries, keys and values of one call; numbers that functions capture."""

    def __init__(self, queries, keys, kv_heads=H, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.queries, self.keys = queries, keys
        self.query = self.trained(B, H, queries, D)
        self.key, self.value = (self.trained(B, kv_heads, keys, size) for size in (D, 6))
        self.distance = torch.arange(keys) - torch.arange(queries)[:, None]
        self.past = queries - 1  # the row of distance 0 in tables of all distances

    def trained(self, *shape):
        return torch.randn(*shape, generator=self.generator, dtype=DOUBLE).requires_grad_()

    def drawn(self, most, *shape):
        return torch.randint(most, shape, generator=self.generator)

    def by_distance(self, table):
        """table [..., all distances] at each pair."""
        return table[..., self.distance + self.past]


# Each: score_mod, the options of `naive` that say the same, and the tensors that are trained.


def alibi(scene):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + (kv_idx - q_idx) * torch.exp2(-((h + 1) * 8.0 / H))

    slopes = 2.0 ** (-8.0 / H * torch.arange(1, H + 1, dtype=DOUBLE))
    return score_mod, {"bias": slopes[:, None, None] * scene.distance}, []


def softcapping(scene):
    def score_mod(score, b, h, q_idx, kv_idx):
        return 3 * torch.tanh(score / 3)

    return score_mod, {"softcap": 3.0}, []


def sandwich(scene):
    """Chi et al. 2023: sums of cosines, over 8 (h + 1) / H."""
    most, width = max(scene.queries, scene.keys), 6
    rates = 10000.0 ** (-2 * torch.arange(width, dtype=DOUBLE) / (2 * width))
    table = torch.cos(torch.arange(1 - most, most, dtype=DOUBLE)[:, None] * rates).sum(-1)
    ratio = H / (8.0 * torch.arange(1, H + 1, dtype=DOUBLE))

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[q_idx - kv_idx + most - 1] * ratio[h]

    angles = scene.distance[..., None] * rates
    return score_mod, {"bias": angles.cos().sum(-1) * ratio[:, None, None]}, []


def spatial(scene):
    """Ying et al. 2021 (Graphormer): a number of each head and length of the shortest path."""
    paths = scene.drawn(7, B, scene.queries, scene.keys)
    table = scene.trained(H, 7)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[h, paths[b, q_idx, kv_idx]]

    return score_mod, {"bias": table[:, paths].transpose(0, 1)}, [table]


def edges(scene, hops=3):
    """The same: the mean over the path of a number of each head, hop and kind of edge."""
    shape = (B, scene.queries, scene.keys)
    kinds, lengths = scene.drawn(5, *shape, hops), scene.drawn(hops + 1, *shape)
    table = scene.trained(H, hops, 5)
    by_hop = [table[:, hop] for hop in range(hops)]

    def score_mod(score, b, h, q_idx, kv_idx):
        length = lengths[b, q_idx, kv_idx]
        total = 0.0
        for hop, numbers in enumerate(by_hop):
            own = numbers[h, kinds[b, q_idx, kv_idx, hop]]
            total = total + torch.where(length > hop, own, 0.0)
        return score + total / torch.clamp(length, min=1)

    found = sum(table[:, hop][:, kinds[..., hop]] * (lengths > hop) for hop in range(hops))
    return score_mod, {"bias": (found / lengths.clamp(min=1)).transpose(0, 1)}, [table]


def table_of_distances(scene):
    past = scene.past
    table = scene.trained(H, scene.queries + scene.keys - 1)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[h][kv_idx - q_idx + past]

    return score_mod, {"bias": scene.by_distance(table)}, [table]


def network(scene):
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Linear(1, 9), torch.nn.GELU(), torch.nn.Linear(9, H, bias=False)
    ).double()

    def score_mod(score, b, h, q_idx, kv_idx):
        far = torch.log1p((q_idx - kv_idx).abs().to(score.dtype))
        return score + net(far[None])[h]

    far = scene.distance.abs().double().log1p()[..., None]
    return score_mod, {"bias": net(far).movedim(-1, 0)}, list(net.parameters())


def of_keys(scene):
    past = scene.past
    numbers, table = scene.trained(B, H, scene.keys), scene.trained(scene.queries + scene.keys)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + numbers[b, h, kv_idx] - table[kv_idx - q_idx + past] + 0.5

    bias = numbers[:, :, None] - scene.by_distance(table) + 0.5
    return score_mod, {"bias": bias}, [numbers, table]


def capped_bias(scene):
    """A factor, a bias within the cap, a window outside of it."""
    past = scene.past
    table = scene.trained(H, scene.queries + scene.keys)

    def score_mod(score, b, h, q_idx, kv_idx):
        score = torch.div(score, 2).add(table[h, kv_idx - q_idx + past], alpha=2)
        score = (score / 4.0).tanh().mul(4.0)
        return torch.where((q_idx - kv_idx).abs() <= 9, score, -float("inf"))

    mask = torch.where(scene.distance.abs() <= 9, 0.0, -torch.inf)
    options = {"bias": 2 * scene.by_distance(table), "softcap": 4.0, "mask": mask}
    return score_mod, {**options, "scale": 0.5 * D**-0.5}, [table]


def either(scene):
    """One of two biases, by the side of the query."""
    past, future = scene.trained(H), scene.trained(H)

    def score_mod(score, b, h, q_idx, kv_idx):
        before = score + past[h] * (kv_idx - q_idx)
        return torch.where(kv_idx <= q_idx, before, score - future[h])

    slope, step = past[:, None, None], future[:, None, None]
    bias = torch.where(scene.distance <= 0, slope * scene.distance, -step)
    return score_mod, {"bias": bias}, [past, future]


def dense(scene):
    """Numbers of the user's own pairs, where a head-dependent stride sees them."""
    numbers = scene.trained(B, H, scene.queries, scene.keys)

    def score_mod(score, b, h, q_idx, kv_idx):
        score = score + numbers[b, h, q_idx, kv_idx]
        return score.masked_fill((kv_idx - q_idx) % (h + 1) != 0, float("-inf"))

    stride = torch.arange(1, H + 1)[:, None, None]
    mask = torch.where(scene.distance % stride == 0, 0.0, -torch.inf)
    return score_mod, {"bias": numbers, "mask": mask}, [numbers]


SCORES = [alibi, softcapping, sandwich, spatial, edges, table_of_distances, network, of_keys]
SCORES += [capped_bias, either, dense]


# Each: mask_mod, and bool [B or 1, H or 1, queries, keys]. The first take scenes of any lengths.


def causal(scene):
    return (lambda b, h, q_idx, kv_idx: q_idx >= kv_idx), scene.distance <= 0


def sliding_window(scene):
    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= 11)

    return mask_mod, (scene.distance <= 0) & (scene.distance >= -11)


def prefix_lm(scene):
    def mask_mod(b, h, q_idx, kv_idx):
        return (kv_idx < 13) | (q_idx >= kv_idx)

    seen = scene.distance <= 0
    seen[:, :13] = True
    return mask_mod, seen


def dilated_sliding_window(scene):
    def mask_mod(b, h, q_idx, kv_idx):
        far = torch.abs(q_idx - kv_idx)
        return (far <= 12) & (far % 3 == 0)

    rows = [[d in range(-12, 13, 3) for d in row] for row in scene.distance.tolist()]
    return mask_mod, torch.tensor(rows)


def every_head(scene):
    """Head h sees h + 3 tokens of its past, but no token of the second batch row's first five."""

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs().le(h + 3) & ((b == 0) | (kv_idx >= 5))

    reach = torch.arange(3, H + 3)[:, None, None]
    seen = (scene.distance.abs() <= reach).expand(B, -1, -1, -1).clone()
    seen[1, :, :, :5] = False
    return mask_mod, seen


MASKS = [causal, sliding_window, prefix_lm, dilated_sliding_window, every_head]


def _documents():
    sizes = [7, 1, 20, 12, 23]
    return sizes, torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def document():
    sizes, ids = _documents()
    starts = torch.tensor([0, *sizes]).cumsum(0)

    def mask_mod(b, h, q_idx, kv_idx):
        q, k = (each - starts[ids[each]] for each in (q_idx, kv_idx))
        return (ids[q_idx] == ids[kv_idx]) & (q >= k)

    blocks = [torch.ones(size, size, dtype=torch.bool).tril() for size in sizes]
    return mask_mod, torch.block_diag(*blocks).bool()


def shared_prefix():
    """Documents 1 and 2 go on from document 0, document 4 from document 3."""
    sizes, ids = _documents()
    starts, prefix = torch.tensor([0, *sizes]).cumsum(0), torch.tensor([0, 0, 0, 3, 3])

    def mask_mod(b, h, q_idx, kv_idx):
        own = ids[q_idx]
        first = prefix[own]
        causal = (kv_idx >= starts[own]) & (q_idx >= kv_idx)
        before = (own != first) & (kv_idx >= starts[first]) & (kv_idx < starts[first + 1])
        return causal | before

    rows = []
    for i, mine in enumerate(ids.tolist()):
        others = enumerate(ids.tolist())
        rows.append([(of == mine and j <= i) or (mine != prefix[mine] == of) for j, of in others])
    return mask_mod, torch.tensor(rows, dtype=torch.bool)


def _near(at, kernel, sides):
    """bool [L, L] for coordinates at [L, axes]: windows that move inward at edges."""
    seen = True
    for axis, (size, side) in enumerate(zip(kernel, sides, strict=True)):
        first = (at[:, axis] - size // 2).clamp(0, side - size)[:, None]
        seen = seen & (at[:, axis] >= first) & (at[:, axis] < first + size)
    return seen


def _natten(split, kernel, sides):
    def mask_mod(b, h, q_idx, kv_idx):
        seen = q_idx >= 0
        for q, k, size, side in zip(split(q_idx), split(kv_idx), kernel, sides, strict=True):
            centre = q.clamp(size // 2, side - 1 - size // 2)
            seen = seen & ((centre - k).abs() <= size // 2)
        return seen

    return mask_mod


def natten(kernel=(3, 5), sides=(7, 9)):
    mask_mod = _natten(lambda idx: (idx // sides[1], idx % sides[1]), kernel, sides)
    return mask_mod, _near(torch.cartesian_prod(*map(torch.arange, sides)), kernel, sides)


def _tiled(sides, tile):
    """[L, 2]: the coordinates of tokens that stand tile by tile."""
    rows, columns = (torch.arange(side) for side in sides)
    at = torch.cartesian_prod(rows, columns).view(*sides, 2)
    at = at.unflatten(0, (-1, tile[0])).unflatten(2, (-1, tile[1]))
    return at.transpose(1, 2).reshape(-1, 2)


def tiled_natten(kernel=(5, 3), sides=(6, 9), tile=(2, 3)):
    def split(idx):
        number, within = idx // (tile[0] * tile[1]), idx % (tile[0] * tile[1])
        across = sides[1] // tile[1]
        row, column = number // across * tile[0], number % across * tile[1]
        return row + within // tile[1], column + within % tile[1]

    return _natten(split, kernel, sides), _near(_tiled(sides, tile), kernel, sides)


def morton_natten(kernel=(3, 3), sides=(8, 8)):
    def every_second_bit(code):
        code = code & 0x55555555
        for shift, kept in ((1, 0x33333333), (2, 0x0F0F0F0F), (4, 0x00FF00FF), (8, 0x0000FFFF)):
            code = (code | (code >> shift)) & kept
        return code

    mask_mod = _natten(lambda i: (every_second_bit(i), every_second_bit(i >> 1)), kernel, sides)
    codes = torch.arange(sides[0] * sides[1])
    at = [sum((codes >> (2 * bit + axis) & 1) << bit for bit in range(3)) for axis in (0, 1)]
    return mask_mod, _near(torch.stack(at, -1), kernel, sides)


def sta(kernel=(6, 4), sides=(8, 8), tile=(2, 4)):
    """Sliding tiles: the tiles of a window around the query's tile, moved inward at edges."""
    tiles = [side // size for side, size in zip(sides, tile, strict=True)]
    window = [side // size for side, size in zip(kernel, tile, strict=True)]

    def split(idx):
        number = idx // (tile[0] * tile[1])
        return number // tiles[1], number % tiles[1]

    def mask_mod(b, h, q_idx, kv_idx):
        seen = q_idx < sides[0] * sides[1]
        for q, k, size, side in zip(split(q_idx), split(kv_idx), window, tiles, strict=True):
            left, right = size // 2, size // 2 + size % 2 - 1
            centre = q.clamp(left, side - 1 - right)
            seen = seen & (k >= centre - left) & (k <= centre + right)
        return seen

    at = _tiled(sides, tile) // torch.tensor(tile)
    return mask_mod, _near(at, window, tiles)


FIXED = [document, shared_prefix, natten, tiled_natten, morton_natten, sta]

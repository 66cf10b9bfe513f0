"""The faults: a file, a text that occurs in it once, and what takes its place."""

from typing import NamedTuple


class Fault(NamedTuple):
    file: str
    old: str
    new: str

    @property
    def name(self):
        return f"{self.file}: {self.old.strip().splitlines()[0]!r} -> {self.new.strip()!r}"


def of(file, *pairs):
    return [Fault(file, old, new) for old, new in pairs]


FAULTS = [
    *of(
        "src/values/terms.cc",
        ("delta < lo_ || delta > hi_", "delta < lo_ || delta >= hi_"),
        ("reversed_ ? hi_ - inside : inside - lo_", "inside - lo_"),
        ("std::upper_bound(starts_", "std::lower_bound(starts_"),
        ("data.multiplier = multiplier;", ""),
    ),
    *of(
        "src/values/turns.h",
        ("rotation.start + 2 * n + 1}", "rotation.start + 2 * n + 2}"),
        ("rotation.start + n + rotation.dims / 2", "n + rotation.dims / 2"),
        ("view.shape[1] == 1 ? 0 : h, n", "0, n"),
        ("rotation.magnitude * s}", "s}"),
    ),
    *of(
        "src/values/tensor.cc",
        ("view.numel() == 0) return;\n  int64_t reach", "false) return;\n  int64_t reach"),
        ("std::abs(view.strides[n])", "view.strides[n]"),
    ),
    *of(
        "src/values/views.cc",
        ("fits = size == 1 || size == shape[at];", "fits = true;"),
        ("view.strides[static_cast<size_t>(axis)] != 0", "true"),
        ("size == 1 && shape[at] != 1 ? 0", "size == 1 && shape[at] != 1 ? 1"),
    ),
    *of(
        "src/values/position_text.cc",
        ('if (number == 0.0 && std::signbit(number)) return "-0.0";', ""),
        ("if (c == '\\'' || c == '\\\\') text += '\\\\';", ""),
    ),
    *of(
        "src/values/options.cc",
        ('check_value(!twice, scheme.name, ": ", spec->name, ": given twice");', ""),
        ("if (item.first == spec.name) value = item.second;", ""),
    ),
    *of(
        "src/kernels/dropout.h",
        ("words[column / 16 % 4] >= threshold_", "words[column / 16 % 4] > threshold_ + 99999999"),
        ("p < 1.0 ? 1.0 / (1.0 - p) : 0.0", "1.0"),
        ("static_cast<uint32_t>(head + first_head_)", "static_cast<uint32_t>(head)"),
        ("rows_.empty() ? i : rows_[static_cast<size_t>(i)]", "i"),
    ),
    *of(
        "src/kernels/threefry.h",
        ("kRounds = 13", "kRounds = 12"),
        ("x[3] += step;", ""),
    ),
    *of(
        "src/kernels/seen_tiles.h",
        ("all[i % rows_]", "all[0]"),
        ("found == nullptr || found->tile != tile ? nullptr : found", "found"),
    ),
    *of(
        "src/kernels/problem.h",
        ("(~uint64_t{0} >> (kTile - (to - from))) << from", "(~uint64_t{0}) << from"),
        ("(rows == 1 ? 0 : b) * queries + i", "i"),
    ),
    *of(
        "src/kernels/block/softmax_state.cc",
        ("std::log2(sum)) + shift", "std::log2(sum))"),
        ("if (sum == 0.0) return {-HUGE_VAL, 1.0};", ""),
    ),
    *of(
        "src/kernels/block/load_rows.cc",
        ("std::fill(row + n, row + padded, 0.0f);", ""),
        ("std::memcpy(row + d, bytes + (at + d * stride) * 4, 4)", "row[d] = 0.0f"),
    ),
    *of(
        "src/kernels/terms/biases.cc",
        ("slopes.view.at({1, block.head[row]})", "slopes.view.at({0, block.head[row]})"),
        ("(distance < 0 ? past : future) += cell", "(distance <= 0 ? future : past) += cell"),
        ("gradient.slopes[p.heads + h] +=", "gradient.slopes[h] +="),
        ("cell * term.table.multiplier;", "cell;"),
    ),
    *of(
        "src/kernels/plan/bias_plan.cc",
        ("distance < 0 ? past : future", "past"),
        ("if (term.values.view.rank == 3) plan.key_bias_rows = p.batch;", ""),
    ),
    *of(
        "src/kernels/plan/row_shift.cc",
        ("sum += view.load(at) * term.values.multiplier;", "sum += view.load(at);"),
        ("-before < after ? before : after", "after"),
        ("shift.slopes += bias;", ""),
    ),
    *of(
        "src/kernels/plan/angle_tables.h",
        ("a.sin[n] * b.cos[n] + a.cos[n] * b.sin[n]", "a.sin[n] * b.cos[n] - a.cos[n] * b.sin[n]"),
        ("sin[n] = static_cast<float>(sin[n] * magnitude_);", ""),
        ("if (tile_ != tile) coarse_", "if (!tile_) coarse_"),
    ),
    *of(
        "src/kernels/terms/key_biases.cc",
        ("plan_.key_bias_rows == 1 ? 0 : block.batch", "0"),
        ("(data.view.rank == 3 ? b * p.heads : 0) + ", ""),
    ),
    *of(
        "src/kernels/terms/sinks.cc",
        ("-weight * delta", "weight * delta"),
        ("sums.sinks[n][g] * by;", "sums.sinks[n][g];"),
        ("own[(b * p.heads + h) * p.queries + i]", "own[h * p.queries + i]"),
    ),
    *of(
        "src/kernels/terms/query_added.cc",
        ("sums.added[d] * by;", "sums.added[d];"),
    ),
    *of(
        "src/kernels/drive/key_chunks.cc",
        ("l += scaled(part[plan_.Dvp + 1]);", "l = scaled(part[plan_.Dvp + 1]);"),
        ("o[d] += scaled(part[d]);", "o[d] += part[d];"),
    ),
    *of(
        "src/call/make_problem.cc",
        ("at + window.second + 1", "at + window.second"),
        ("at - window.first", "at - window.first - 1"),
        ("j / kTile)] |= uint64_t{1}", "j / kTile)] |= uint64_t{2}"),
        ("if (!options.is_causal) window.second = right;", "window.second = right;"),
        ("(lo_rows == 1 ? 0 : b) * problem.queries + i", "i"),
        ("problem.adds_sinks = options.adds_sinks;", ""),
        ("check_value(explicit_q == explicit_k,", "check_value(true,"),
    ),
    *of(
        "src/call/attention.cc",
        ("if (inner.mask != nullptr) write_values(mask, gradients.attn_mask);", ""),
        ("terms = call.heads.spread(call.whole, std::move(terms));", ""),
    ),
    *of(
        "src/call/rotary.cc",
        ("? -turns[r].sin", "? turns[r].sin"),
        ("if (!turned[static_cast<size_t>(d)]) out.store(", "if (false) out.store("),
    ),
    *of(
        "src/call/tile_mask.cc",
        ("entry.tile > before && entry.tile < tiles", "entry.tile < tiles"),
    ),
    *of(
        "src/binding/source.cc",
        ("offset += entry * whole.strides[static_cast<size_t>(axis)];", ""),
        ("bounded.least_ = least;", ""),
    ),
    *of(
        "src/schemes/common/buckets.cc",
        ("return reaches(n, whole - max_exact_) ? whole : whole - 1;", "return whole - 1;"),
        ("bidirectional ? buckets / 2 : buckets", "buckets"),
    ),
    *of(
        "src/schemes/common/slopes.cc",
        ("finer[static_cast<size_t>(2 * i)]", "finer[static_cast<size_t>(i)]"),
    ),
    *of(
        "src/schemes/common/frequencies.cc",
        ("std::pow(base, -static_cast<double>(p)", "std::pow(base, static_cast<double>(p)"),
    ),
    *of(
        "src/schemes/common/maps.cc",
        ("delta = none ? lo : lo + 1", "delta = lo + 1"),
        ("mirrored ? middle - delta : middle + delta", "middle + delta"),
    ),
    *of("src/schemes/t5.cc", ("bias_scale * weight", "weight")),
    *of("src/schemes/alibi.cc", ("b.slopes(slope[0], -slope[1])", "b.slopes(slope[0], slope[1])")),
    *of("src/schemes/shaw.cc", ("2 == 1 && std::max(left(), right()) <= middle", "2 == 1")),
    *of(
        "src/schemes/deberta.cc",
        ("std::ceil(share * (middle - 1.0))", "std::floor(share * (middle - 1.0))"),
    ),
    *of(
        "src/schemes/sandwich.cc",
        ("0.5 * static_cast<double>(delta)", "static_cast<double>(delta)"),
    ),
    *of("src/schemes/fire.cc", ("length + 1.0) + 1e-6", "length + 1.0) + 1e-3")),
    *of("src/schemes/rope_llama3.cc", ("if (wave < original / high) return w;", "")),
    *of("src/schemes/rope_yarn.cc", ("m(*mscale) / m(*mscale_all_dim)", "m(*mscale)")),
    *of(
        "src/io/npy.cc",
        ('at_ != text_.size()) file_.fail("text after', 'false) file_.fail("text after'),
    ),
    *of(
        "src/io/safetensors.cc", ("if (entry->begin != covered) {", "if (entry->begin < covered) {")
    ),
    *of("src/base/parallel.cc", ("if (task >= task_) return;", "")),
    *of(
        "src/base/buffer.cc",
        ("while (lock && count_ > 0) release(remove(0));", ""),
    ),
    *of("c/relpos.cc", ("slot.wide : slot.narrow", "slot.narrow : slot.narrow")),
    *of(
        "python/relpos/_call/packing.py",
        (
            "self.starts_k[sequence], self.starts_k[sequence + 1]",
            "self.starts_k[sequence] * 0, self.starts_k[sequence + 1]",
        ),
        ("self.starts_q[sequence] + self.offsets[sequence]", "self.starts_q[sequence]"),
        (
            "hi = torch.minimum(hi, first(at + (right + 1)))",
            "hi = torch.minimum(hi, first(at + right))",
        ),
    ),
    *of(
        "python/relpos/_call/merge.py",
        ("masked_fill(torch.isneginf(own).unsqueeze(-1), 0.0)", "clone()"),
        (".masked_fill(unseen, -torch.inf)", ""),
        ("return [w / total for w in weights]", "return list(weights)"),
    ),
    *of(
        "python/relpos/_call/autograd.py",
        ("_differentiable(wanted[6:])", "_differentiable(wanted[5:])"),
        ("places[_MASK] = gradients[0]", "places[-1] = gradients[0]"),
        ("if _core.seen_by(query, key, value, (*given[3:], *tensors)) == NOBODY:", "if True:"),
    ),
    *of(
        "python/relpos/_base/derivatives.py",
        ("    torch.autograd._profiler_enabled,\n", ""),
    ),
    *of(
        "python/relpos/_call/cache.py",
        ("return self._start + len(self)", "return len(self)"),
    ),
    *of(
        "python/relpos/_position/classes.py",
        ("self._text, offset, positions, False", "self._text, 0, positions, False"),
    ),
    *of(
        "python/relpos/_call/varlen.py",
        (
            'sinks=_of_batch(options.pop("sinks", None), query)',
            'sinks=options.pop("sinks", None) and None',
        ),
    ),
    *of(
        "python/relpos/distributed/_ring.py",
        ("return (self.rank - step) % self.ranks", "return (self.rank + step) % self.ranks"),
        ("                to += what\n", "                to.copy_(what)\n"),
    ),
    *of(
        "python/relpos/lab/chorales.py",
        ("if begin + steps > _MAX_STEPS:", "if steps > _MAX_STEPS:"),
        ('if b"<!ENTITY" in data:', 'if b"<!entity" in data:'),
    ),
]

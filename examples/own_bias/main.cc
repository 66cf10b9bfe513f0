// A scheme of one's own, trained: a number for each head and distance learns what ALiBi does.
#include <relpos/relpos.h>

#include <cstdio>
#include <random>

using namespace relpos;

struct ByDistance {
  int64_t heads = 0, reach = 31;
  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("reach", reach, "past distances up to it have a number of their own");
  }
  void terms(Builder& b) const {
    const Source table = b.parameter("table", {heads, reach + 1}, Init::constant(0), "the numbers");
    b.bias(ClassMap::clamp(-reach, 0), table);
  }
};

int main() {
  register_scheme<ByDistance>("by_distance", "ByDistance", "a number a distance", "this file");
  const std::vector<int64_t> shape{8, 4, 32, 16};  // [B, H, L, D]
  const Tensor q(DType::kFloat32, shape), k = q, v = q, out = q, target = q, dout = q;
  const Tensor lse(DType::kFloat32, {8, 4, 32}), slopes(DType::kFloat32, {4});
  const Tensor table(DType::kFloat32, {4, 32}), dtable = table;
  std::mt19937 random(0);
  std::normal_distribution<float> normal;
  for (const Tensor* x : {&q, &k, &v}) {
    for (int64_t n = 0; n < q.view().numel(); ++n) x->data<float>()[n] = normal(random);
  }
  for (int h = 0; h < 4; ++h) slopes.data<float>()[h] = 0.5F / static_cast<float>(1 << h);
  Position alibi = parse_position("alibi(heads=4)"), own = parse_position("by_distance(heads=4)");
  alibi.parts[0].parameters = {slopes.view()};
  own.parts[0].parameters = {table.view()};
  const Options causal{.is_causal = true, .threads = 1};  // too small a call for more
  attention(q.view(), k.view(), v.view(), alibi, causal, target.view());
  for (int step = 0; step <= 200; ++step) {
    attention(q.view(), k.view(), v.view(), own, causal, out.view(), lse.view());
    double loss = 0;
    for (int64_t n = 0; n < out.view().numel(); ++n) {
      const float error = out.data<float>()[n] - target.data<float>()[n];
      dout.data<float>()[n] = error;
      loss += error * error / static_cast<double>(out.view().numel());
    }
    attention_backward(q.view(), k.view(), v.view(), out.view(), lse.view(), dout.view(), {}, own,
                       causal, {{}, {}, {}, {{dtable.view()}}, {}});
    for (int64_t n = 0; n < 4 * 32; ++n) table.data<float>()[n] -= 0.005F * dtable.data<float>()[n];
    if (step % 50 == 0) std::printf("step %3d: loss %.6f\n", step, loss);
  }
}

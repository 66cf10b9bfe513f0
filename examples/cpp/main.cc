// Causal attention with a trained T5 bias: forward, backward, and the gradient of the bias table.
#include <relpos/relpos.h>

#include <cstdio>
#include <random>

int main() {
  using namespace relpos;
  const std::vector<int64_t> shape{1, 4, 100, 16};  // [B, H, L, D]
  std::mt19937 generator(0);
  std::normal_distribution<float> normal;
  const auto random = [&](std::vector<int64_t> dims) {
    Tensor tensor(DType::kFloat32, dims);
    for (int64_t n = 0; n < tensor.view().numel(); ++n) tensor.data<float>()[n] = normal(generator);
    return tensor;
  };
  const Tensor q = random(shape), k = random(shape), v = random(shape), dout = random(shape);
  const Tensor table = random({32, 4}), out(DType::kFloat32, shape),
               lse(DType::kFloat32, {1, 4, 100});
  const Tensor dq(DType::kFloat32, shape), dk = dq, dv = dq, dtable(DType::kFloat32, {32, 4});

  Position position = parse_position("t5(heads=4, bidirectional=false)");
  position.parts[0].parameters = {table.view()};
  const Options options{.is_causal = true};
  try {
    attention(q.view(), k.view(), v.view(), position, options, out.view(), lse.view());
    attention_backward(q.view(), k.view(), v.view(), out.view(), lse.view(), dout.view(), {},
                       position, options, {dq.view(), dk.view(), dv.view(), {{dtable.view()}}, {}});
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("relpos %s, %zu schemes\n", RELPOS_VERSION, schemes().size());
  std::printf("out[0, 0, 99, 0] = %.4f\n", static_cast<double>(out.view().at({0, 0, 99, 0})));
  std::printf("gradient of bucket 0, by head:");
  for (int64_t h = 0; h < 4; ++h) std::printf(" %.4f", dtable.view().at({0, h}));
  std::printf("\n");
}

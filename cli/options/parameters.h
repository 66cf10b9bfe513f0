// Parameters of a position: from a file, else as their scheme initialises them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "relpos/position.h"
#include "relpos/tensor.h"

namespace relpos::cli {

struct Parameter {
  size_t part = 0, index = 0;
  std::string name;    // in files: the dotted name, "PART.name" where two parts share it
  ParameterSpec spec;  // with the shape of the tensor
  Tensor tensor;
  bool from_file = false;
};

// Owns what position.parts[n].parameters views.
class Parameters {
 public:
  // Sets the views of every part. `file` is "", .safetensors with tensors by name (ours, or that of
  // one of the spec's origins where no other part has such a parameter), or .npy for a position
  // with one parameter. What the file lacks is drawn from the spec's Init in `dtype`.
  // A part's own name may stand after "PART." or "parts.PART.", as in the state dict of a sum.
  // Throws Error on a shape or type that does not fit, on non-finite numbers, and on a file that
  // holds none of the names. Inputs of the call have the sizes of `sizes`; `inputs` are NAME=FILE.npy
  // for each, or empty: then they are drawn as their scheme's example says.
  Parameters(Position& position, const std::string& file, uint64_t seed, DType dtype,
             const InputSizes& sizes = {}, const std::vector<std::string>& inputs = {});

  const std::vector<Parameter>& items() const noexcept { return items_; }
  // Views of gradients as relpos::Gradients has them: what `of` gives for each trainable one.
  std::vector<std::vector<TensorView>> gradients(
      const std::function<TensorView(const Parameter&)>& of) const;
  // A note on the parameters that the file lacks; empty without a file.
  std::string missing_text() const;
  // Names whose numbers are random.
  std::vector<std::string> drawn_at_random() const;
  // Without a file: which of the trainable ones are random, which as initialised; else empty.
  std::string drawn_text(uint64_t seed) const;

 private:
  void load(const std::string& file);
  void load_safetensors(const std::string& file);
  void load_inputs(const std::vector<std::string>& inputs);
  // The names of the items for which `holds` is true.
  std::vector<std::string> names(const std::function<bool(const Parameter&)>& holds) const;
  std::string file_, held_;
  InputSizes sizes_;
  size_t parts_;
  std::vector<Parameter> items_;
};

}  // namespace relpos::cli

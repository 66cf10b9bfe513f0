// Parameters of a position: from a file, else as their scheme initialises them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "relpos/position.h"
#include "relpos/tensor.h"

namespace relpos::cli {

struct Parameter {
  size_t part = 0, index = 0;
  std::string name;  // in files: the dotted name, "PART.name" where two parts share it
  ParameterSpec spec;
  Tensor tensor;
  bool from_file = false;
};

// Owns what position.parts[n].parameters views.
class Parameters {
 public:
  // Sets the views of every part. `file` is empty, a .safetensors file, or a .npy file for a position
  // with one parameter. In a .safetensors file a tensor has the name of relpos, or a name that it has in
  // other code if no other part has such a parameter; "PART." or "parts.PART." may stand before the
  // name, as in the state dict of a sum. Parameters that are not in the file are initialised as the
  // spec says, in `dtype`. Throws Error on a shape or type that does not fit, on numbers that are not
  // finite, and on a file without any of the names. Inputs of the call have the sizes of `sizes`;
  // `inputs` has NAME=FILE.npy for each, or is empty: then they are random, as their spec says.
  Parameters(Position& position, const std::string& file, uint64_t seed, DType dtype,
             const InputSizes& sizes = {}, const std::vector<std::string>& inputs = {});

  const std::vector<Parameter>& items() const noexcept { return items_; }
  // A note about parameters that are not in the file; empty without a file.
  std::string missing_text() const;
  // Names whose numbers are random.
  std::vector<std::string> drawn_at_random() const;
  // A note about which trainable parameters are random and which are fixed values; empty with a file.
  std::string drawn_text(uint64_t seed) const;

 private:
  void load(const std::string& file);
  void load_safetensors(const std::string& file);
  void load_inputs(const std::vector<std::string>& inputs);
  std::string file_, held_;
  std::vector<Parameter> items_;
};

}  // namespace relpos::cli

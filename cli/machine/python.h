// The Python interpreter that has relpos[torch], for what is written in Python.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace relpos::cli {

// $RELPOS_PYTHON, else that of the environment of this tool: beside it, or, in a build folder, in the
// .venv beside that. Never one of the current folder. Empty where there is none.
std::string find_python();

// Becomes `python -m module words`, in which no file of the current folder takes the place of a module.
// `who` begins its messages. Returns an exit code only where that fails.
int become_python(const std::string& who, const std::string& module,
                  const std::vector<std::string>& words);

// What relpos._tool replies to a request. Throws Error where there is no Python, and what it refuses.
nlohmann::ordered_json ask_python(const std::string& who, const nlohmann::ordered_json& request);

}  // namespace relpos::cli

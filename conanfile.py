"""Conan 2: `conan create .` in a checkout packs the libraries; `-o "&:tool=True"` the tool, too."""

import re
from pathlib import Path

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout


class Relpos(ConanFile):
    name = "relpos"
    description = (
        "Transformer attention with relative positions: exact, trainable, linear in memory"
    )
    license = "Apache-2.0"
    topics = ("attention", "transformer", "relative-position", "rope", "alibi", "simd")
    package_type = "library"
    settings = ("os", "arch", "compiler", "build_type")
    options = {"shared": [True, False], "fPIC": [True, False], "tool": [True, False]}  # noqa: RUF012
    default_options = {"shared": False, "fPIC": True, "tool": False}  # noqa: RUF012
    implements = ("auto_shared_fpic",)
    exports_sources = ("CMakeLists.txt", "LICENSE", "NOTICE", "c/*", "cli/*", "cmake/*",
                       "include/*", "src/*")  # fmt: skip

    def set_version(self):
        text = (Path(self.recipe_folder) / "include/relpos/version.h").read_text()
        self.version = re.search(r'RELPOS_VERSION "([^"]+)"', text)[1]

    def requirements(self):
        for header_only in ("highway/1.2.0", "nlohmann_json/3.11.3"):
            self.requires(header_only, visible=False)
        if self.options.tool:
            self.requires("cli11/2.4.2", visible=False)

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["RELPOS_BUILD_TESTS"] = False
        toolchain.cache_variables["RELPOS_BUILD_CLI"] = bool(self.options.tool)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        cmake = CMake(self)
        components = ["dev", "c"] + (["tool"] if self.options.tool else [])
        for component in components:
            cmake.install(component=component)
        for name in ("LICENSE", "NOTICE"):
            licenses = Path(self.package_folder) / "licenses"
            licenses.mkdir(exist_ok=True)
            (licenses / name).write_text((Path(self.source_folder) / name).read_text())

    def package_info(self):
        # The package's own relposConfig.cmake says what to link.
        self.cpp_info.builddirs = ["lib/cmake/relpos"]
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.libs = ["relpos"]

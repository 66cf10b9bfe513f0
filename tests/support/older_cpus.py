"""Programs on CPUs of x86-64 that offer less than this one, as qemu emulates them."""

from tests.support.cli_tool import ran, silent

# By target: what qemu emulates has AVX2 and no AVX-512; Nehalem is older than AVX.
CPUS = {"avx2": "max", "baseline": "Nehalem"}


def emulated(target, command):
    """stdout of a program that succeeds on the CPU of that target."""
    command = ["qemu-x86_64", "-cpu", CPUS[target], *command]
    return ran(command, env=silent(), seconds=120)


def selftest_passes(target, tool, scheme):
    """One case of a scheme, on the CPU of that target."""
    said = emulated(target, [tool, "selftest", "--scheme", scheme, "--case", 1])
    assert said.splitlines()[-1].split()[0::4] == [scheme, "ok"]
    assert f"\ntarget              {target}\n" in said

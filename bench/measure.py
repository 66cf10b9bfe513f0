"""Measures cases: here, or in a process of its own that has the environment of the case."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import torch
from case import PEAK, Case, Row, first_line
from clock import Budget, measured_machine
from rows import all_cases


def measure(case: Case, budget: Budget) -> list[Row]:
    """A case that fails is a row that says why."""
    try:
        if case.environment is not None:
            return measure_apart(case, budget)
        torch.manual_seed(0)
        return case.run(case, budget)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        return [case.row(error=first_line(error))]


def of_peak(rows: list[Row], peak: float) -> None:
    """GFLOP/s become percentages of the machine's peak, once."""
    for row in rows:
        if row["unit"] == PEAK and "values" in row and "peak" not in row:
            row["values"] = [100 * value / peak for value in row["values"]]
            row["peak"] = peak


def measure_apart(case: Case, budget: Budget) -> list[Row]:
    """In a new process with the environment of the case."""
    before = dict(os.environ)
    os.environ.update(case.environment)
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(measure_named, case.name, budget).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


def measure_named(name: str, budget: Budget) -> list[Row]:
    (case,) = (case for case in all_cases() if case.name == name)
    rows = measure(replace(case, environment=None), budget)
    if case.unit == PEAK:
        peak = measured_machine(budget.interference)["peak_all"]
        of_peak(rows, peak)
        rows[0]["note"] = f"of that target's peak, {peak:.0f} GFLOP/s"
    return rows

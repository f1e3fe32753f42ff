"""Fuzzing of everything that reads a file: inputs made from valid files by changes, and what may come of reading them.

A reader may return a result, or raise an error of this package with a short text of one line. Anything else is a
finding: another error, a warning of a library, a crash of the process, a hang, memory without bound, code run from the
file, something written elsewhere. Every input follows from a seed, the reader's name and a number.
"""

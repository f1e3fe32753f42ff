"""The paper's experiments, run again through the package's public interface, and a study of DP-Laplace.

Räisä, Koskela and Honkela, "Differentially Private Hamiltonian Monte Carlo", section "Experiments". All records are
synthetic (or the public Adult data, in the study of DP-Laplace) and all runs are seeded, so that nothing here is
private; it must never be given secret data. Run as ``python -m studies``.
"""

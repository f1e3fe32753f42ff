"""The paper's experiments, run again through the package's public interface.

Räisä, Koskela and Honkela, "Differentially Private Hamiltonian Monte Carlo", section "Experiments". All records are
synthetic and all runs are seeded, so that nothing here is private; it must never be given real data. Run as
``python -m studies``.
"""

"""What `dpmcmc demo` runs and what its pages show: `adult` (a real table) and `banana` (the paper's model).

They use the package's public interface only. The records are public or synthetic, which is the only reason why a page
may show what is not private beside what is.
"""

"""Programs that try to break the package: planted bugs, fuzzing, a soak. Not installed."""

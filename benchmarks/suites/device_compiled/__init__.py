"""What XLA makes of each step for devices that are not here: two TPUs and an H100.

Claim checked: every operation compiles for every device, and a step moves no more than its records say. The compilers
need no device: libtpu compiles for a TPU that a topology describes, and the plugin for CUDA compiles for a GPU that a
file describes. `targets.py` has the devices, `steps.py` the steps, `reading.py` the counts.

    make bench-devices                                            compile everything, in some minutes
    python -m benchmarks.suites.device_compiled --only "SID"      some steps anew, others as kept

Writes `results/device-compiled.json` and `.md`. `tests/devices` holds new code against this record. Nothing here is a
time on a device: cycles are XLA's estimates, bytes are read off the compiled code.
"""

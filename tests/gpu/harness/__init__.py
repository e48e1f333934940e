# SPDX-License-Identifier: Apache-2.0
"""What the items of the GPU tests are made of. Python's standard library only: the machine has nothing else."""

# SPDX-License-Identifier: Apache-2.0
icebox_fuzz(gpu_protocol icebox_cuda_protocol)

# SPDX-License-Identifier: Apache-2.0
icebox_fuzz(ttrpc_frame shim_ttrpc)

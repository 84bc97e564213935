#include "parallel/shard/dispatch/cast_policy.h"

#include <map>

#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_signature.h"

namespace meshrun {
namespace {

struct Group {
  CastPolicies policies;  // CPU, CUDA
  std::vector<const char*> operators;
};

using PolicyTable = std::map<std::string, CastPolicies>;

const PolicyTable& policy_table() {
  // Composite operators without a policy of their own, by their parts:
  //   cross_entropy_loss, CUDA   log_softmax and nll_loss, both float32
  //   nll_loss_nd                nll_loss or nll_loss2d, both float32
  //   einsum, tensordot, CPU     bmm and mm in the lower precision; a product without a sum casts
  //                              nothing
  //   affine_grid_generator      bmm in the lower precision
  //   bilinear, CPU              bmm in the lower precision; the result is as the first operand
  static const auto* kGroups = new std::vector<Group>{
      {{CastPolicy::kLibTorchs, CastPolicy::kLibTorchs},
       {"binary_cross_entropy", "binary_cross_entropy_with_logits", "cdist", "grid_sampler",
        "huber_loss", "kl_div", "l1_loss", "linear", "matmul", "mse_loss", "nll_loss", "nll_loss2d",
        "poisson_nll_loss", "prod", "prod.dim_int", "scaled_dot_product_attention",
        "smooth_l1_loss", "soft_margin_loss"}},
      {{CastPolicy::kFloat32, CastPolicy::kFloat32}, {"nll_loss_nd"}},
      {{CastPolicy::kLibTorchs, CastPolicy::kFloat32}, {"cross_entropy_loss"}},
      {{CastPolicy::kLibTorchs, CastPolicy::kNone},
       {"adaptive_avg_pool3d", "adaptive_max_pool3d", "avg_pool3d", "fft_irfft2", "fft_irfftn",
        "fft_rfft2", "fft_rfftn", "grid_sampler_2d", "grid_sampler_3d", "index_copy", "max_pool3d",
        "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d",
        "replication_pad3d", "trace"}},
      {{CastPolicy::kNone, CastPolicy::kLibTorchs},
       {"_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "convolution",
        "cumprod",
        "cumsum",
        "group_norm",
        "index_put",
        "layer_norm",
        "linalg_vector_norm",
        "logsumexp",
        "native_layer_norm",
        "norm.Scalar",
        "norm.ScalarOpt_dim",
        "scatter_add",
        "sum",
        "sum.dim_IntList",
        "upsample_bicubic2d",
        "upsample_bilinear2d",
        "upsample_linear1d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_trilinear3d"}},
      {{CastPolicy::kParts, CastPolicy::kParts}, {"affine_grid_generator"}},
      {{CastPolicy::kParts, CastPolicy::kLibTorchs}, {"bilinear", "einsum", "tensordot"}},
      {{CastPolicy::kNone, CastPolicy::kNone},
       {"_embedding_bag",
        "_embedding_bag_forward_only",
        "_fft_r2c",
        "_pad_circular",
        "_upsample_lanczos2d_aa",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
        "all",
        "all.dim",
        "all.dims",
        "allclose",
        "alpha_dropout",
        "alpha_dropout_",
        "amax",
        "amin",
        "aminmax",
        "any",
        "any.dim",
        "any.dims",
        "argmax",
        "argmin",
        "avg_pool1d",
        "avg_pool2d",
        "batch_norm",
        "col2im",
        "constant_pad_nd",
        "count_nonzero",
        "count_nonzero.dim_IntList",
        "cummax",
        "cummin",
        "cumprod_",
        "cumsum_",
        "diag_embed",
        "dropout",
        "dropout_",
        "embedding",
        "embedding_bag",
        "embedding_bag.padding_idx",
        "feature_alpha_dropout",
        "feature_alpha_dropout_",
        "feature_dropout",
        "feature_dropout_",
        "flatten.using_ints",
        "flip",
        "gather",
        "glu",
        "glu_backward",
        "im2col",
        "imag",
        "index.Tensor",
        "index_add",
        "index_add_",
        "index_copy_",
        "index_fill.int_Scalar",
        "index_fill.int_Tensor",
        "index_fill_.int_Scalar",
        "index_fill_.int_Tensor",
        "index_put_",
        "index_reduce",
        "index_reduce_",
        "index_select",
        "instance_norm",
        "kthvalue",
        "linalg_cross",
        "logcumsumexp",
        "masked_select",
        "max",
        "max.dim",
        "max_pool1d",
        "max_pool1d_with_indices",
        "max_pool2d",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "mean",
        "mean.dim",
        "median",
        "median.dim",
        "min",
        "min.dim",
        "nanmedian",
        "nanmedian.dim",
        "nanquantile",
        "nanquantile.scalar",
        "nansum",
        "nonzero",
        "norm.ScalarOpt_dim_dtype",
        "norm.ScalarOpt_dtype",
        "one_hot",
        "outer",
        "quantile",
        "quantile.scalar",
        "ravel",
        "real",
        "reflection_pad3d",
        "repeat",
        "repeat_interleave.self_int",
        "reshape",
        "rms_norm",
        "roll",
        "rot90",
        "scatter.src",
        "scatter.value",
        "scatter_.src",
        "scatter_.value",
        "scatter_add_",
        "scatter_reduce.two",
        "scatter_reduce_.two",
        "select.int",
        "slice.Tensor",
        "sort",
        "sort.stable",
        "split.Tensor",
        "split_with_sizes",
        "std.correction",
        "std_mean.correction",
        "take",
        "topk",
        "unbind.int",
        "unflatten.int",
        "unsafe_split.Tensor",
        "unsafe_split_with_sizes",
        "var.correction",
        "var_mean.correction"}},
  };
  static const auto* kTable = [] {
    auto* by_name = new PolicyTable;
    for (const Group& group : *kGroups) {
      for (const char* op : group.operators) {
        const std::string name = std::string("aten::") + op;
        // Another version of LibTorch may not have it.
        if (find_operator(name)) by_name->emplace(name, group.policies);
      }
    }
    return by_name;
  }();
  return *kTable;
}

}  // namespace

const CastPolicies* cast_policies_of(const std::string& op) {
  const auto found = policy_table().find(op);
  return found == policy_table().end() ? nullptr : &found->second;
}

std::vector<std::string> operators_with_cast_policies() {
  std::vector<std::string> names;
  for (const auto& [name, policies] : policy_table()) names.push_back(name);
  return names;
}

void AutocastCall::see(const at::Tensor& operand) {
  if (mesh_) return;
  const ShardTensorImpl* impl = shard_impl(operand);
  if (impl == nullptr) return;
  mesh_ = impl->spec()->mesh();
  device_ = operand.device().type();
}

CastPolicy AutocastCall::policy(const c10::OperatorHandle& op, const CastPolicies* stated) const {
  const bool is_known = device_ == c10::DeviceType::CPU || device_ == c10::DeviceType::CUDA;
  if (!mesh_ || !is_known || !at::autocast::is_autocast_enabled(device_)) return CastPolicy::kParts;
  if (op.hasKernelForDispatchKey(key())) return CastPolicy::kLibTorchs;
  if (stated == nullptr) return CastPolicy::kParts;
  const CastPolicy policy = device_ == c10::DeviceType::CPU ? stated->cpu : stated->cuda;
  // Another version of LibTorch may have dropped a policy.
  return policy == CastPolicy::kLibTorchs ? CastPolicy::kParts : policy;
}

c10::DispatchKey AutocastCall::key() const {
  return at::autocast::get_autocast_dispatch_key_from_device_type(device_);
}

at::Tensor AutocastCall::placed(const at::Tensor& operand) const {
  if (!operand.defined() || is_shard_tensor(operand) || !operand.requires_grad() ||
      !c10::GradMode::is_enabled() || operand.device().type() != device_) {
    return operand;
  }
  return promote(operand, mesh_);
}

at::Tensor AutocastCall::in_float32(const at::Tensor& operand) const {
  return at::autocast::cached_cast(at::kFloat, placed(operand), device_);
}

}  // namespace meshrun

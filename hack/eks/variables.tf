variable "region" {
  description = "Where the cluster is made; g4dn.12xlarge and g5.12xlarge must be on offer there."
  type        = string
  default     = "us-west-2"
}

variable "name" {
  description = "Of the cluster and of all that belongs to it."
  type        = string
  default     = "hami-dra"
}

variable "kubernetes_version" {
  description = "1.36 or newer."
  type        = string
  default     = "1.36"

  validation {
    condition     = tonumber(split(".", var.kubernetes_version)[0]) == 1 && tonumber(split(".", var.kubernetes_version)[1]) >= 36
    error_message = "hami-dra needs Kubernetes 1.36 or newer."
  }
}

variable "image" {
  description = "The container image, built with hack/image/build.sh and pushed where the nodes can pull it."
  type = object({
    repository = string
    tag        = optional(string, "")
    digest     = optional(string, "")
  })
}

variable "capacity_type" {
  description = "ON_DEMAND or SPOT, for the GPU nodes."
  type        = string
  default     = "ON_DEMAND"
}

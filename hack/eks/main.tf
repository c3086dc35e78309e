# An EKS cluster with one node of 4 T4 (g4dn.12xlarge), one of 4 A10G (g5.12xlarge), one without cards, and hami-dra on it.
# Not applied by anybody yet: see README.md.

provider "aws" {
  region = var.region
}

provider "helm" {
  kubernetes = {
    host                   = module.eks.cluster_endpoint
    cluster_ca_certificate = base64decode(module.eks.cluster_certificate_authority_data)
    exec = {
      api_version = "client.authentication.k8s.io/v1beta1"
      command     = "aws"
      args        = ["eks", "get-token", "--cluster-name", module.eks.cluster_name, "--region", var.region]
    }
  }
}

data "aws_availability_zones" "available" {
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

locals {
  cidr  = "10.0.0.0/16"
  zones = slice(data.aws_availability_zones.available.names, 0, 3)

  # one node of each; the driver's DaemonSet goes where the label is
  gpu_machines = {
    t4   = "g4dn.12xlarge"
    a10g = "g5.12xlarge"
  }
  gpu_label = { "hami-dra.nodes/vendor" = "nvidia" }

  gpu_node_groups = {
    for name, machine in local.gpu_machines : name => {
      ami_type       = "AL2023_x86_64_NVIDIA"
      instance_types = [machine]
      capacity_type  = var.capacity_type
      min_size       = 0
      max_size       = 1
      desired_size   = 1
      labels         = local.gpu_label
      # images of model servers are large
      block_device_mappings = {
        root = {
          device_name = "/dev/xvda"
          ebs = {
            volume_size           = 200
            volume_type           = "gp3"
            delete_on_termination = true
          }
        }
      }
    }
  }
}

module "vpc" {
  source  = "terraform-aws-modules/vpc/aws"
  version = "~> 6.0"

  name            = var.name
  cidr            = local.cidr
  azs             = local.zones
  private_subnets = [for index, _ in local.zones : cidrsubnet(local.cidr, 4, index)]
  public_subnets  = [for index, _ in local.zones : cidrsubnet(local.cidr, 8, index + 48)]

  enable_nat_gateway = true
  single_nat_gateway = true
}

module "eks" {
  source  = "terraform-aws-modules/eks/aws"
  version = "~> 21.0"

  name                   = var.name
  kubernetes_version     = var.kubernetes_version
  endpoint_public_access = true

  # whoever applies this may use the cluster
  enable_cluster_creator_admin_permissions = true

  vpc_id     = module.vpc.vpc_id
  subnet_ids = module.vpc.private_subnets

  addons = {
    coredns    = {}
    kube-proxy = {}
    vpc-cni    = { before_compute = true }
  }

  # the rules that the module recommends let the API server reach port 8443, where the webhook listens
  node_security_group_enable_recommended_rules = true

  eks_managed_node_groups = merge(local.gpu_node_groups, {
    system = {
      ami_type       = "AL2023_x86_64_STANDARD"
      instance_types = ["m7i.large"]
      min_size       = 1
      max_size       = 2
      desired_size   = 1
    }
  })
}

resource "helm_release" "hami_dra" {
  name             = "hami-dra"
  namespace        = "hami-dra-system"
  create_namespace = true
  chart            = "${path.module}/../../charts/hami-dra"
  wait             = true

  values = [yamlencode({
    image = var.image
    vendors = {
      nvidia = {
        enabled      = true
        nodeSelector = local.gpu_label
      }
    }
  })]

  depends_on = [module.eks]
}

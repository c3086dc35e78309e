output "kubeconfig" {
  description = "The command that makes kubectl know the cluster."
  value       = "aws eks update-kubeconfig --name ${module.eks.cluster_name} --region ${var.region}"
}

"""What follows from the request of a converted pod."""

from controller.webhook.request import decode, plugin_resources, template


def template_of(annotation, namespace):
    """The ResourceClaimTemplate of a pod with this annotation."""
    return template(decode(annotation), namespace)


def resources_of(conversion):
    """Extended resources whose device plugins must not serve the pod."""
    return plugin_resources(conversion.request) if conversion.request is not None else ()

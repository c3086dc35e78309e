"""What may be allocated: the semantics of DRA for one node. Which of it should be is `controller.scheduling.scoring`'s business."""

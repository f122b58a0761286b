"""What nobody in their right mind would send: it ends in an error or as a dead letter, and takes nothing with it."""

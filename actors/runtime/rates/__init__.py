"""This node's part of the cluster's rates and slots, as the governor deals them."""

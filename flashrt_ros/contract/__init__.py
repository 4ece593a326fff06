"""What a robot offers and a policy needs: contracts and message conversions, no rclpy."""

"""What a robot offers and a policy needs: contract files and message conversions, without rclpy."""

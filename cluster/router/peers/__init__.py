"""What routers ask each other for operators: questions, answers, and the port for them."""

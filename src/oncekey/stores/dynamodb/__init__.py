"""Records in DynamoDB."""

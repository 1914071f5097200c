"""Records in MySQL and MariaDB."""

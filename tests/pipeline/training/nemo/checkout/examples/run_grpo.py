from fake import main

main("grpo")

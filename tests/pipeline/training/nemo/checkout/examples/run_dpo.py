from fake import main

main("dpo")

"""Will a flight arrive more than 15 minutes late?"""

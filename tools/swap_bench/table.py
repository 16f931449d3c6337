def show(figures, console):
    console.print(figures)

/** Renders what a program writes to a terminal as rows of text. It understands what editors and pagers send. */
const ESCAPE =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: terminal control sequences begin with them
  /^\x1b(?:\[([?>=!]?)([\d;:]*)[ "$'*]?([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|P[^\x1b]*\x1b\\|[()][A-Z0-9]|([7-9=>A-Z]))/
const TAB = 8

export function renderScreen(text: string, rows: number, cols: number): string[] {
  const blank = () => Array.from({ length: cols }, () => ' ')
  const screen = Array.from({ length: rows }, blank)
  let [row, col, top, bottom] = [0, 0, 0, rows - 1]
  let saved = [0, 0]

  const scroll = (first: number, last: number, by: number) => {
    for (let i = 0; i < Math.abs(by); i++) {
      screen.splice(by > 0 ? first : last, 1)
      screen.splice(by > 0 ? last : first, 0, blank())
    }
  }
  const clear = (y: number, from: number, to: number) => screen[y]?.fill(' ', from, to)
  const place = (y: number, x: number) => {
    row = Math.min(Math.max(y, 0), rows - 1)
    col = Math.min(Math.max(x, 0), cols - 1)
  }
  const lineFeed = () => (row === bottom ? scroll(top, bottom, 1) : place(row + 1, col))

  const commands: Record<string, (n: number, numbers: number[]) => void> = {
    A: (n) => place(row - (n || 1), col),
    B: (n) => place(row + (n || 1), col),
    C: (n) => place(row, col + (n || 1)),
    D: (n) => place(row, col - (n || 1)),
    G: (n) => place(row, (n || 1) - 1),
    d: (n) => place((n || 1) - 1, col),
    H: (n, [, x = 1]) => place((n || 1) - 1, (x || 1) - 1),
    J: (n) => {
      for (let y = n === 0 ? row + 1 : 0; y < (n === 1 ? row : rows); y++) clear(y, 0, cols)
      if (n < 2) commands.K!(n, [])
    },
    K: (n) => clear(row, n === 0 ? col : 0, n === 1 ? col + 1 : cols),
    L: (n) => scroll(row, bottom, -(n || 1)),
    M: (n) => scroll(row, bottom, n || 1),
    P: (n) => screen[row]!.splice(cols, 0, ...screen[row]!.splice(col, n || 1).map(() => ' ')),
    X: (n) => clear(row, col, col + (n || 1)),
    '@': (n) => screen[row]!.splice(col, 0, ...blank().slice(0, n || 1)) && screen[row]!.splice(cols),
    r: (n, [, last = rows]) => {
      ;[top, bottom] = [(n || 1) - 1, (last || rows) - 1]
      place(0, 0)
    },
  }

  for (let at = 0; at < text.length; at++) {
    const char = text[at]!
    const found = char === '\x1b' ? ESCAPE.exec(text.slice(at, at + 256)) : null
    if (found) {
      const [all, mark, numbers = '', command, single] = found
      at += all.length - 1
      const list = numbers.split(/[;:]/).map(Number)
      if (command && !mark) commands[command]?.(list[0]!, list)
      if (single === 'M') row === top ? scroll(top, bottom, -1) : place(row - 1, col)
      if (single === '7') saved = [row, col]
      if (single === '8') place(saved[0]!, saved[1]!)
    } else if (char === '\r') col = 0
    else if (char === '\n') lineFeed()
    else if (char === '\b') place(row, col - 1)
    else if (char === '\t') place(row, (Math.floor(col / TAB) + 1) * TAB)
    else if (char >= ' ') {
      // A character in the last column wraps only when the next one is written.
      if (col === cols) {
        col = 0
        lineFeed()
      }
      screen[row]![col++] = char
    }
  }
  return screen.map((line) => line.join('').trimEnd())
}

/** Compares the parts of two versions as numbers: 2.38.1 is at least 2.38, and 10.0 is at least 7.2. */
export function isAtLeast(version: string, minimum: string): boolean {
  const parts = version.split('.').map(Number)
  for (const [index, wanted] of minimum.split('.').map(Number).entries()) {
    const part = parts[index] ?? 0
    if (part !== wanted) return part > wanted
  }
  return true
}

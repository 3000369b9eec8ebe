/** What people see while they wait. */
export function say(text: string): void {
  process.stdout.write(`${text}\n`)
}

/** Names what is being done before it is done, and how long it took after. */
export async function step<T>(name: string, work: () => Promise<T>): Promise<T> {
  const startedAt = performance.now()
  process.stdout.write(`  ${name} …`)
  try {
    const result = await work()
    process.stdout.write(` ${((performance.now() - startedAt) / 1000).toFixed(1)} s\n`)
    return result
  } catch (error) {
    process.stdout.write(' failed\n')
    throw error
  }
}

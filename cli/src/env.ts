/** `warren env`: prints lines that a shell can evaluate, and nothing else. */
import { getLocalApi } from './api.ts'

export async function printEnv(): Promise<void> {
  const { baseUrl, key } = await getLocalApi()
  process.stdout.write(`WARREN_BASE_URL=${baseUrl}\nWARREN_API_KEY=${key}\n`)
}

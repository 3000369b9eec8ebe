/** `warren sandboxes resize <sandbox> <size>`: grows the disk of a running sandbox. */
import type { SandboxResizeView } from '@warren/protocol'
import { callApi, getApi, getSandboxId } from './api.ts'

export async function resizeSandbox(sandbox: string, size: string): Promise<void> {
  const disk_mib = parseSize(size)
  const api = await getApi()
  const id = await getSandboxId(api, sandbox)
  const grown = await callApi<SandboxResizeView>(api, 'POST', `/v1/sandboxes/${id}/resize`, { disk_mib })
  process.stdout.write(`the disk of ${id} has ${grown.disk_mib} MiB\n`)
}

/** In MiB: `20480` or `20G`. Which sizes are possible, the API says. */
export function parseSize(text: string): number {
  const [, number, unit] = /^(\d{1,6})(g|gib)?$/i.exec(text) ?? []
  if (number === undefined) throw new Error(`${text} is not a size; give MiB, such as 20480, or GiB, such as 20G`)
  return Number(number) * (unit === undefined ? 1 : 1024)
}

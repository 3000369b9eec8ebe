/** The private keys of a development chain: random per installation, in files that only the owner reads. */
import { mkdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import { writeFileDurably } from '@warren/kit/files'
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts'

/** `wallet` is for its user, `settler` sends payments, `recipient` receives them. */
export const DEV_KEYS = ['wallet', 'settler', 'recipient'] as const
export type DevKey = { file: string; address: `0x${string}` }

export async function openDevKeys(folder: string): Promise<Record<(typeof DEV_KEYS)[number], DevKey>> {
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const [wallet, settler, recipient] = await Promise.all(
    DEV_KEYS.map((name) => openKey(path.join(folder, `${name}.key`))),
  )
  return { wallet: wallet!, settler: settler!, recipient: recipient! }
}

async function openKey(file: string): Promise<DevKey> {
  const known = await readFile(file, 'utf8').catch(() => undefined)
  const key = (known?.trim() ?? generatePrivateKey()) as `0x${string}`
  if (known === undefined) await writeFileDurably(file, `${key}\n`)
  return { file, address: privateKeyToAccount(key).address }
}

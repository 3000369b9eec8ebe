/** Puts our token at the addresses of the real ones, and gives balances of it away. Only on chains of this machine. */
import { readFileSync } from 'node:fs'
import { type Abi, encodeAbiParameters, keccak256, numberToHex, type TestClient } from 'viem'
import { type Chain, TOKEN_NAMES, type Token } from '../chains/table.ts'

type Hex = `0x${string}`
type Contract = { abi: Abi; bytecode: Hex; deployedBytecode: Hex }

export const CONTRACTS = JSON.parse(
  readFileSync(new URL('./contracts/contracts.json', import.meta.url), 'utf8'),
) as Record<'TestToken' | 'TestWallet', Contract>

type Client = Pick<TestClient<'anvil'>, 'setCode' | 'setStorageAt'>

export async function putTokens(client: Client, chain: Chain): Promise<void> {
  for (const name of TOKEN_NAMES) {
    await client.setCode({ address: chain.tokens[name].address, bytecode: CONTRACTS.TestToken.deployedBytecode })
  }
}

/** Writes the balance into the storage of the token: an entry of the mapping in slot 0. */
export async function setTokenBalance(client: Client, token: Token, address: Hex, raw: bigint): Promise<void> {
  const index = keccak256(encodeAbiParameters([{ type: 'address' }, { type: 'uint256' }], [address, 0n]))
  await client.setStorageAt({ address: token.address, index, value: numberToHex(raw, { size: 32 }) })
}

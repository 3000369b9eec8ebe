/**
 * Signatures of contract wallets (EIP-1271), when the operator has switched them on. Asked only after plain recovery
 * failed: an account can have code and still sign with its key (EIP-7702).
 */
import { hashMessage, parseAbi } from 'viem'
import { ChainUnreachable } from '../chains/chains.ts'
import { DEFAULT_CHAIN, findChain } from '../chains/table.ts'
import type { Deps } from '../deps.ts'
import { badGateway } from '../http/errors.ts'

const ABI = parseAbi(['function isValidSignature(bytes32 hash, bytes signature) view returns (bytes4)'])
/** What a contract returns for a valid signature. */
const MAGIC = '0x1626ba7e'

export async function isContractSignature(
  deps: Deps,
  chainHeader: string | string[] | undefined,
  wallet: `0x${string}`,
  message: string,
  signature: `0x${string}`,
): Promise<boolean> {
  const chain = findChain(typeof chainHeader === 'string' ? chainHeader : DEFAULT_CHAIN)
  if (!chain) return false
  const address = wallet.toLowerCase() as `0x${string}`
  try {
    return await deps.chains[chain.name].read(async (client) => {
      const code = await client.getCode({ address })
      if (code === undefined || code === '0x') return false
      try {
        const args = [hashMessage(message), signature] as const
        return (await client.readContract({ address, abi: ABI, functionName: 'isValidSignature', args })) === MAGIC
      } catch (error) {
        if (isAnswer(error)) return false
        throw error
      }
    })
  } catch (error) {
    if (error instanceof ChainUnreachable)
      throw badGateway('Could not verify the signature of a contract wallet', error)
    throw error
  }
}

/** A contract that reverts, or that has no such function, says no. Everything else is a failure of the endpoint. */
function isAnswer(error: unknown): boolean {
  const name = (error as { cause?: { name?: string } }).cause?.name ?? ''
  return /^(ContractFunctionRevertedError|ContractFunctionZeroDataError|AbiDecoding\w*Error)$/.test(name)
}
